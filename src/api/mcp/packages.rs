//! The tools that install packages: our own, and ipybox's.

use super::{Caller, McpParts, caller::ToolResult, content, sessions::own_conversation};
use crate::{
    api::schema::{
        arguments::InstallPackage,
        packages::{InstallPackages, InstalledPackages},
    },
    domain::{error::Code, id::Language},
    services::packages::{InstallRequest, Installed},
};

impl McpParts {
    pub(super) async fn install_packages(&self, caller: &Caller, arguments: InstallPackages) -> ToolResult {
        let InstallPackages { conversation, language, packages } = arguments;
        let wanted = InstallRequest { conversation: caller.key(conversation), language, tool: None, packages };
        let installed = self.packages.install(wanted, |_| {}).await?;
        Ok(content::said(caller, sentence(&installed), &InstalledPackages::from(&installed)))
    }

    pub(super) async fn install_package(&self, caller: &Caller, arguments: InstallPackage) -> ToolResult {
        let InstallPackage { package_name } = arguments;
        let conversation = caller.key(own_conversation(caller)?);
        let packages = vec![package_name];
        let wanted = InstallRequest { conversation, language: Language::default(), tool: None, packages };
        match self.packages.install(wanted, |_| {}).await {
            Ok(installed) => Ok(content::plain(sentence(&installed), false)),
            Err(failure) if failure.code == Code::PackagesOff => {
                Ok(content::plain(failure.message + self.what_is_there().as_str(), true))
            }
            Err(failure) => Err(failure),
        }
    }

    fn what_is_there(&self) -> String {
        let runners = self.runs.runners();
        let python = runners.iter().find(|runner| runner.language == Language::default());
        let about = python.and_then(|runner| runner.description.as_deref());
        about.map(|about| format!(" Installed: {about}")).unwrap_or_default()
    }
}

fn sentence(installed: &Installed) -> String {
    format!("Installed: {}.", installed.packages.join(", "))
}
