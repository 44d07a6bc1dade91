//! The machine, for who only knows where a controller answers: whether it is the one, a command line in it, its owner.

use super::{Dirs, MachineError, Record, Ssh, ssh};

/// Runs a line in the machine where that is what serves `endpoint`; false where it is not. An error where the line fails.
pub(crate) fn shell_line(endpoint: &str, line: &str) -> Result<bool, MachineError> {
    let Some((dirs, record)) = record_at(endpoint)? else { return Ok(false) };
    Ssh::to(&dirs, &record)?.run(line)?;
    Ok(true)
}

/// Whether the machine is what serves `endpoint`.
pub(crate) fn serves(endpoint: &str) -> bool {
    record_at(endpoint).is_ok_and(|found| found.is_some())
}

/// The machine that runs and serves `endpoint`, and its folders.
pub(crate) fn record_at(endpoint: &str) -> Result<Option<(Dirs, Record)>, MachineError> {
    let dirs = Dirs::from_env();
    let record = Record::running(&dirs)?.filter(|record| is_at(&record.url(), endpoint));
    Ok(record.map(|record| (dirs, record)))
}

/// What its controller knows the machine's owner by: whoever may enter it may do everything there.
pub(crate) fn owner_token() -> Option<String> {
    ssh::owner_token(&Dirs::from_env()).ok()
}

fn is_at(url: &str, endpoint: &str) -> bool {
    url.trim_end_matches('/') == endpoint.trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_known_by_where_it_answers() {
        assert!(is_at("http://127.0.0.1:8889", "http://127.0.0.1:8889/"));
        assert!(!is_at("http://127.0.0.1:8889", "http://127.0.0.1:8890"));
    }
}
