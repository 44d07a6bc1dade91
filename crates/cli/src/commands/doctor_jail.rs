//! `forkd doctor --jail`.

use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::JailReport;

use crate::context::Context;
use crate::error::CliError;
use crate::ui;

/// Exit code where something that is needed is not as it should be.
const EXIT_BROKEN: u8 = 6;

pub(super) async fn run(id: &SandboxId, context: &Context) -> Result<u8, CliError> {
    let report: JailReport = context.client().await?.get(&format!("/v1/sandboxes/{id}/jail")).await?;
    context.ui.show(&report, render);
    Ok(if report.ok { 0 } else { EXIT_BROKEN })
}

fn render(report: &JailReport) -> String {
    let rows = report.checks.iter().map(|check| {
        let verdict = match (check.ok, check.needed) {
            (true, _) => "ok",
            (false, true) => "NOT OK",
            (false, false) => "not here",
        };
        [check.name.clone(), verdict.to_owned(), check.found.clone()]
    });
    let mut text = ui::table(&["WHAT", "", "FOUND"], rows);
    let all = if report.ok { "jailed" } else { "NOT jailed as it should be" };
    text.push_str(&format!("\nThe monitor of {} (process {}) is {all}.\n", report.id, report.pid));
    text
}

#[cfg(test)]
mod tests {
    use forkd_protocol::rest::JailCheck;

    use super::*;

    #[test]
    fn a_hole_is_told_from_what_a_host_does_not_offer() {
        let check =
            |name: &str, ok, needed| JailCheck { name: name.to_owned(), ok, needed, found: "x".to_owned() };
        let checks = vec![
            check("root", false, true),
            check("user namespace", false, false),
            check("user", true, true),
        ];
        let report =
            JailReport { id: "sb-1".to_owned(), pid: 7, ok: false, checks, descriptors: Default::default() };
        let text = render(&report);
        for word in ["root            NOT OK", "user namespace  not here", "user            ok", "NOT jailed"]
        {
            assert!(text.contains(word), "{word} is not in\n{text}");
        }
    }
}
