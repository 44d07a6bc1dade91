//! The only module with `unsafe`: system calls that have no safe wrapper in the crates used here.
//!
//! Everything outside passes and receives owned descriptors and plain values.

mod device;
mod spawn;

pub(crate) use device::{
    add_entropy, bytes_pending, load_module, loopback_up, open_pty, reseed_crng, send_signal, set_subreaper,
    set_window_size, watch,
};
pub(crate) use spawn::{Credentials, Launch, launch};
