//! REST: routes that only translate. Each takes a request apart, calls one method of the engine and puts
//! the answer together; what a failure means to a client is decided in [`error`] alone.
//!
//! ```text
//!   listen    loopback or Unix socket, graceful end
//!   router    all routes, limits, the OpenAPI document
//!   extract   bodies, queries and names out of requests; refusals in the API's own shape
//!   routes/   one file per noun
//! ```

#![forbid(unsafe_code)]

mod drain;
mod error;
mod extract;
mod listen;
mod router;
mod routes;
mod upload;

pub use drain::{Drain, Leave};
pub use error::status_of;
pub use listen::{Bound, Listen, ListenParseError, ServeError};
pub use router::{openapi, router};
