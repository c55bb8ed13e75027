//! The page after a call, as the driver answers it. What surfaces pass on as it is has one struct for both.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The page after a call. Everything in it is the page's or the sandbox's own word.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Page {
    pub url: String,
    pub title: String,
    /// The HTTP status, where this call went to an address and one answered.
    pub status: Option<u16>,
    pub text: String,
    pub text_truncated: bool,
    pub links: Vec<PageLink>,
    /// How many are not listed; so of the others.
    pub links_more: u64,
    pub controls: Vec<Control>,
    pub controls_more: u64,
    pub anchors: Vec<Anchor>,
    pub anchors_more: u64,
    pub extracted: Vec<Extracted>,
    pub extracted_more: u64,
    /// Paths in /data.
    pub downloads: Vec<String>,
    pub notes: Vec<String>,
    pub screenshots: u32,
    /// Why not all of the call was done; what was done before stays done.
    pub error: Option<PageError>,
}

/// A link of a page.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema, ToSchema)]
#[schemars(inline)]
#[schema(as = LinkResult)]
pub struct PageLink {
    pub text: String,
    pub url: String,
}

/// An element that can be used.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema, ToSchema)]
#[schemars(inline)]
#[schema(as = ControlResult)]
pub struct Control {
    /// Its role, such as button, link or textbox.
    pub role: String,
    pub name: String,
    /// Its selector, for actions.
    pub selector: String,
    /// Its value; never that of a password field.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub value: Option<String>,
    /// The options that can be selected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// Whether it is disabled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Anchor {
    pub text: String,
    pub selector: String,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Extracted {
    pub tag: String,
    pub text: String,
    pub selector: String,
    pub attributes: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
#[schema(as = PageErrorWord)]
pub enum PageErrorKind {
    /// The address was not reached.
    Navigation,
    Timeout,
    /// No element matches the selector.
    NotFound,
    Crashed,
    Invalid,
    Failed,
}

/// Why an action on a page failed.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema, ToSchema)]
#[schemars(inline)]
#[schema(as = PageErrorResult)]
pub struct PageError {
    /// A stable word for programs.
    pub kind: PageErrorKind,
    // In the driver's answer it has this other name.
    #[serde(alias = "sentence")]
    pub message: String,
}
