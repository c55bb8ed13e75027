//! Where traces are sent: the address of a collector and its headers, as its documentation writes them. No error
//! repeats a value, because an address can hold a password and headers do.

use http::{HeaderMap, HeaderName, HeaderValue, Uri, header, uri::PathAndQuery};

use secrecy::ExposeSecret as _;

use super::{ConfigError, Traces};

/// The path below the address of the collector (OTLP 1.x, "OTLP/HTTP Request").
const PATH: &str = "/v1/traces";
const PORT: u16 = 4318;
/// Headers that the sender writes itself, or that would change how the body is read.
const OURS: [HeaderName; 6] = [
    header::HOST,
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::CONTENT_ENCODING,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
];

/// A collector that traces are sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collector {
    /// A name or an address, without brackets.
    pub host: String,
    pub port: u16,
    /// The value of the header `Host`.
    pub authority: HeaderValue,
    pub path: PathAndQuery,
    /// Their values are not shown by `Debug`.
    pub headers: HeaderMap,
}

impl Traces {
    /// The collector, if one is set.
    ///
    /// # Errors
    /// When the address or the headers are malformed.
    pub fn collector(&self) -> Result<Option<Collector>, ConfigError> {
        let headers = headers(self.otlp_headers.expose().expose_secret())?;
        if self.otlp_endpoint.is_empty() {
            return Ok(None);
        }
        address(self.otlp_endpoint.trim(), headers).map(Some)
    }
}

fn address(text: &str, headers: HeaderMap) -> Result<Collector, ConfigError> {
    let error = |why: &str| ConfigError(format!("SANDBOX_TRACES__OTLP_ENDPOINT {why}"));
    let wrong = || error("must be an address such as http://127.0.0.1:4318, without user, query or fragment.");
    let uri: Uri = text.parse().map_err(|_| wrong())?;
    if uri.scheme_str() == Some("https") {
        return Err(error(
            "begins with https, which this server does not support: run a collector on this machine that forwards \
             traces, and set its http address.",
        ));
    }
    let (Some(authority), Some("http")) = (uri.authority(), uri.scheme_str()) else { return Err(wrong()) };
    let host = authority.host().trim_matches(['[', ']']);
    let no_port = matches!(authority.as_str().strip_prefix(authority.host()), Some("" | ":"));
    let port = authority.port_u16().or(no_port.then_some(PORT)).filter(|port| *port > 0).ok_or_else(wrong)?;
    if host.is_empty() || uri.query().is_some() || text.contains(['#', '@']) {
        return Err(wrong());
    }
    let base = uri.path().trim_end_matches('/');
    let path = if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") };
    Ok(Collector {
        host: host.to_owned(),
        port,
        authority: HeaderValue::from_str(authority.as_str()).map_err(|_| wrong())?,
        path: path.parse().map_err(|_| wrong())?,
        headers,
    })
}

fn headers(text: &str) -> Result<HeaderMap, ConfigError> {
    let wrong = || {
        ConfigError(
            "SANDBOX_TRACES__OTLP_HEADERS must be `name=value,name=value` with names of HTTP headers other than those \
             of the body and the connection; in values `,` is written %2C."
                .to_owned(),
        )
    };
    let mut headers = HeaderMap::new();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or_else(wrong)?;
        let name = HeaderName::try_from(name.trim()).map_err(|_| wrong())?;
        let value: Vec<u8> = percent_encoding::percent_decode_str(value.trim()).collect();
        let mut value = HeaderValue::try_from(value).map_err(|_| wrong())?;
        value.set_sensitive(true);
        if OURS.contains(&name) || headers.insert(name, value).is_some() {
            return Err(wrong());
        }
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collector(address: &str, pairs: &str) -> Result<Collector, ConfigError> {
        super::address(address, headers(pairs)?)
    }

    #[test]
    fn addresses_are_parsed() {
        for (text, host, port, path) in [
            ("http://127.0.0.1:4318", "127.0.0.1", 4318, "/v1/traces"),
            ("http://collector", "collector", 4318, "/v1/traces"),
            ("http://[::1]:80/", "::1", 80, "/v1/traces"),
            ("http://[::1]", "::1", 4318, "/v1/traces"),
            ("http://c:1/otlp/", "c", 1, "/otlp/v1/traces"),
            ("http://c:1/v1/traces", "c", 1, "/v1/traces"),
        ] {
            let found = collector(text, "").unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((found.host.as_str(), found.port, found.path.as_str()), (host, port, path), "{text}");
        }
        for bad in [
            "https://127.0.0.1:4318",
            "127.0.0.1:4318",
            "http://",
            "http:///v1/traces",
            "http://c:0",
            "http://c:99999",
            "http://c:x",
            "http://user:pass-of-mine@c:1",
            "http://c:1?key=1",
            "http://c:1#x",
            "unix:///run/otlp.sock",
            "nonsense of all kinds",
        ] {
            let error = collector(bad, "").expect_err(bad).0;
            assert!(error.starts_with("SANDBOX_TRACES__OTLP_ENDPOINT ") && !error.contains("pass-of-mine"), "{error}");
        }
        assert!(collector("https://c", "").expect_err("https").0.contains("does not support"));
    }

    #[test]
    fn headers_are_parsed_and_never_shown() {
        let found = collector("http://c", "Authorization=Basic%20dXNlcg==, x-team = a%2Cb,").expect("headers");
        assert_eq!(found.headers["authorization"], "Basic dXNlcg==");
        assert_eq!(found.headers["x-team"], "a,b");
        assert!(!format!("{found:?}").contains("dXNlcg"), "{found:?}");
        for bad in ["a-secret", "=a-secret", "x y=a-secret", "x=a-secret%0a", "host=a-secret", "x=a-secret,X=1"] {
            let error = collector("http://c", bad).expect_err(bad).0;
            assert!(error.starts_with("SANDBOX_TRACES__OTLP_HEADERS ") && !error.contains("a-secret"), "{error}");
        }
    }
}
