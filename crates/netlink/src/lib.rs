//! Netlink for hosts and guests: a socket that the kernel answers while it is asked, and the interfaces of a namespace.
//!
//! * `socket`: messages of any of netlink's protocols, with what became of each;
//! * `links`: interfaces, addresses, routes and neighbours.

#![forbid(unsafe_code)]

mod links;
mod socket;

pub use links::{Links, Veth};
pub use socket::Netlink;
