//! What only real programs do: packages of one conversation id for two owners, and connections, by chance in turn.

use reqwest::Method;
use serde_json::json;

use crate::{
    network::origin::Origin,
    packages::index::Index,
    support::{
        Server,
        calls::{call, create},
        dice::Dice,
        scale::how_many,
        until,
    },
};

/// The conversation of both.
const SAME: &str = "c";

struct Owner {
    token: String,
    /// What it installs of the same package.
    version: &'static str,
    installed: bool,
    connections: usize,
}

async fn printed(server: &Server, owner: &Owner, code: &str) -> String {
    let body = json!({"conversationId": SAME, "language": "python", "code": code});
    let (_, run) = call(server, &owner.token, Method::POST, "/v1/runs", body).await;
    run["result"]["stdout"].as_str().unwrap_or_else(|| panic!("{run}")).to_owned()
}

impl Owner {
    async fn install(&mut self, server: &Server) {
        let path = format!("/v1/conversations/{SAME}/packages");
        let body = json!({"language": "python", "packages": [format!("tiny=={}", self.version)]});
        let (status, done) = call(server, &self.token, Method::POST, &path, body).await;
        assert_eq!((status, &done["packages"]), (200, &json!([format!("tiny=={}", self.version)])), "{done}");
        self.installed = true;
    }

    async fn import(&self, server: &Server) {
        let code = "try:\n    import tiny\n    print(tiny.VALUE)\nexcept ImportError: print('none')";
        let expected = if self.installed { self.version } else { "none" };
        assert_eq!(printed(server, self, code).await, format!("{expected}\n"));
        let (_, list) = call(server, &self.token, Method::GET, &format!("/v1/conversations/{SAME}/files"), None).await;
        assert_eq!(list["files"], json!([]), "packages are no files: {list}");
    }

    async fn remove(&mut self, server: &Server) {
        let path = format!("/v1/conversations/{SAME}");
        until("it is deleted", async || {
            matches!(call(server, &self.token, Method::DELETE, &path, None).await.0, 204 | 404)
        })
        .await;
        self.installed = false;
    }

    async fn connect(&mut self, server: &Server, origin: &Origin) {
        let code = format!("import requests\nprint(requests.get('http://{}/hello').text)", origin.http);
        assert_eq!(printed(server, self, &code).await, "hello\n");
        self.connections += 1;
    }

    /// Its own connections, and no other's.
    async fn decisions(&self, server: &Server, origin: &Origin) -> usize {
        let (status, list) = call(server, &self.token, Method::GET, "/v1/network/decisions?limit=200", None).await;
        assert_eq!(status, 200, "{list}");
        // Those of installations are of the index.
        let host = origin.http.to_string();
        list["decisions"].as_array().expect("a list").iter().filter(|one| one["target"] == host).count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn packages_and_connections_of_one_conversation_id_are_each_owners() {
    let (index, origin) = (Index::start().await, Origin::start().await);
    let packages = index.settings();
    let host = origin.http.to_string();
    let mut settings: Vec<_> = packages.iter().map(|(name, value)| (*name, value.as_str())).collect();
    settings.extend([("SANDBOX_NETWORK__LOCAL", host.as_str()), ("SANDBOX_STANDBY__TOTAL_MAX", "0")]);
    let server = Server::with(&settings).await;
    let mut owners = Vec::new();
    for (name, version) in [("ann", "1.0"), ("bob", "2.0")] {
        let (_, token) = create(&server, json!({"name": name, "owner": name})).await;
        owners.push(Owner { token, version, installed: false, connections: 0 });
    }
    let mut dice = Dice::new(21);
    for _ in 0..how_many(24, 200) {
        let who = usize::from(dice.below(2) == 1);
        match dice.below(5) {
            0 => owners[who].install(&server).await,
            1 | 2 => owners[who].import(&server).await,
            3 => owners[who].remove(&server).await,
            _ => owners[who].connect(&server, &origin).await,
        }
        for owner in &owners {
            // The list has a connection when it is over.
            until("it is listed", async || owner.decisions(&server, &origin).await >= owner.connections).await;
            assert_eq!(owner.decisions(&server, &origin).await, owner.connections, "and none of the other");
        }
    }
    assert!(owners.iter().all(|owner| owner.connections > 0), "each was connected");
    server.stop().await;
}
