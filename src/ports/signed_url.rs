//! Signed links.
