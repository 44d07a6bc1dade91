//! What a request to branch asks for, once it makes sense.

use std::sync::atomic::{AtomicU32, Ordering};

use forkd_protocol::names::{SandboxId, Tag};
use forkd_protocol::rest::{BranchMode, BranchRequest};

use super::BranchError;
use crate::error::EngineError;
use crate::ids::unix_now;

/// A request that is fine.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) tag: Tag,
    pub(super) mode: BranchMode,
    pub(super) wait: bool,
    pub(super) measure: bool,
    pub(super) with_secrets: bool,
}

impl Plan {
    pub(super) fn check(
        id: &SandboxId,
        asked: BranchRequest,
        forked_from: &str,
    ) -> Result<Self, EngineError> {
        let set = |flag: Option<bool>| flag.unwrap_or(false);
        let (diff, live, measure) = (set(asked.diff), set(asked.live), set(asked.measure_diff));
        if asked.mode.is_some() && (diff || live) {
            return Err(BranchError::Contradiction("`mode` says it all; leave `diff` and `live` out").into());
        }
        if u8::from(diff) + u8::from(live) + u8::from(measure) > 1 {
            return Err(BranchError::Contradiction(
                "only one of `diff`, `live` and `measure_diff` is possible",
            )
            .into());
        }
        let mode = match (asked.mode, diff, measure) {
            (Some(mode), ..) => mode,
            (None, true, _) => BranchMode::Diff,
            (None, _, true) => BranchMode::Full,
            (None, false, false) => BranchMode::Live,
        };
        if measure && mode != BranchMode::Full {
            return Err(BranchError::Contradiction("`measure_diff` goes with full branches only").into());
        }
        let wait = asked.wait.unwrap_or(true);
        if !wait && mode != BranchMode::Live {
            return Err(BranchError::Contradiction("`wait: false` goes with live branches only").into());
        }
        if asked.parent_tag.is_some_and(|parent| parent != forked_from) {
            return Err(BranchError::OtherParent(forked_from.to_owned()).into());
        }
        let tag = asked.tag.filter(|tag| !tag.is_empty()).unwrap_or_else(|| made_up(id));
        Ok(Self { tag: tag.parse()?, mode, wait, measure, with_secrets: asked.with_secrets })
    }
}

/// As published clients know them: `branch-<sandbox>-<unix>-<hex>`.
fn made_up(id: &SandboxId) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let salt = uuid::Uuid::new_v4().as_fields().0 & 0xffff;
    let count = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("branch-{id}-{}-{:x}", unix_now(), u64::from(count) << 16 | u64::from(salt))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(asked: BranchRequest) -> Result<Plan, EngineError> {
        Plan::check(&"sb-1".parse().unwrap(), asked, "base")
    }

    #[test]
    fn live_is_what_nobody_says() {
        let plan = check(BranchRequest::default()).unwrap();
        assert_eq!((plan.mode, plan.wait), (BranchMode::Live, true));
        assert!(plan.tag.as_str().starts_with("branch-sb-1-"));
        assert_ne!(plan.tag, check(BranchRequest::default()).unwrap().tag);
        let diff = check(BranchRequest { diff: Some(true), ..Default::default() }).unwrap();
        assert_eq!(diff.mode, BranchMode::Diff);
        let measured = check(BranchRequest { measure_diff: Some(true), ..Default::default() }).unwrap();
        assert_eq!(measured.mode, BranchMode::Full);
    }

    #[test]
    fn contradictions_are_refused() {
        let on = Some(true);
        for bad in [
            BranchRequest { mode: Some(BranchMode::Live), live: on, ..Default::default() },
            BranchRequest { mode: Some(BranchMode::Full), diff: on, ..Default::default() },
            BranchRequest { diff: on, live: on, ..Default::default() },
            BranchRequest { diff: on, measure_diff: on, ..Default::default() },
            BranchRequest { mode: Some(BranchMode::Diff), measure_diff: on, ..Default::default() },
            BranchRequest { mode: Some(BranchMode::Diff), wait: Some(false), ..Default::default() },
            BranchRequest { parent_tag: Some("other".into()), ..Default::default() },
            BranchRequest { tag: Some("../a".into()), ..Default::default() },
        ] {
            let e = check(bad.clone()).expect_err("is refused");
            assert_eq!(e.class(), forkd_protocol::error::ErrorClass::Caller, "{bad:?}");
        }
    }
}
