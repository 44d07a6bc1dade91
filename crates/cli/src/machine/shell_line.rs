//! A command line in the machine, for who only knows where a controller answers.

use super::{Dirs, MachineError, Record, Ssh};

/// Runs a line in the machine where that is what serves `endpoint`; false where it is not. An error where the line fails.
pub(crate) fn shell_line(endpoint: &str, line: &str) -> Result<bool, MachineError> {
    let dirs = Dirs::from_env();
    let Some(record) = Record::running(&dirs)?.filter(|record| is_at(&record.url(), endpoint)) else {
        return Ok(false);
    };
    Ssh::to(&dirs, &record)?.run(line)?;
    Ok(true)
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
