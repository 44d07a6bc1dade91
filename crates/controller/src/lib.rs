//! REST: routes that only translate. Each takes a request apart, calls one method of the engine and puts
//! the answer together; what a failure means to a client is decided in [`error`] alone.
//!
//! ```text
//!   listen    loopback, Unix socket, or TLS; graceful end
//!   access/   who may do what: tokens, scopes, tenants, quotas
//!   audit/    what was done, by whom, in a chain of hashes
//!   service   the engine and what stands around it
//!   router    all routes and their limits
//!   openapi/  the document that describes them, and its page
//!   repeat    answers that are given again to whoever asks with the same key
//!   list      filters and pages
//!   progress  work that takes long, as events
//!   metrics   requests and errors, counted; all figures as text
//!   span      what is logged on behalf of a request says which one it is
//!   extract   bodies, queries and names out of requests; refusals in the API's own shape
//!   routes/   one file per noun
//!   lines/    the TCP protocol of forkd's published client, at an address of each sandbox
//!   e2b/      the control plane of E2B's clients
//!   traffic/  what is meant for a sandbox: by headers, by host name, by signed address
//!   proxy     HTTP and WebSockets to a port of a sandbox
//! ```

#![forbid(unsafe_code)]

mod access;
mod audit;
mod claims;
mod clock;
mod drain;
mod e2b;
mod error;
mod extract;
mod lines;
mod list;
mod listen;
mod metrics;
mod openapi;
mod progress;
mod proxy;
mod repeat;
mod router;
mod routes;
mod service;
mod span;
mod tls;
mod traffic;
mod upload;

pub use access::{ChosenToken, Hosts, WeakToken};
pub use drain::{Drain, Leave};
pub use error::status_of;
pub use lines::{Action, GuestPorts, GuestPortsParseError, Outcome, answer as answer_line};
pub use listen::{Bound, Doors, Listen, ListenParseError, ServeError};
pub use openapi::{openapi, openapi_json};
pub use service::{OpenServiceError, Service, ServiceOptions};
pub use tls::{TlsError, TlsFiles};
