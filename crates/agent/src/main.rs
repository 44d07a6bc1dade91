//! Entry point: `/init` of the guest, or an ordinary process for tests.

use std::process::ExitCode;

/// What the agent frees is overwritten: secrets pass through its memory, and its memory is in every snapshot.
#[global_allocator]
static ALLOCATOR: zeroizing_alloc::ZeroAlloc<std::alloc::System> =
    zeroizing_alloc::ZeroAlloc(std::alloc::System);

fn main() -> ExitCode {
    match forkd_agent::Options::parse(std::env::args().skip(1)) {
        Ok(options) => forkd_agent::main(&options),
        Err(error) => {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "forkd-agent: {error}");
            ExitCode::from(2)
        }
    }
}
