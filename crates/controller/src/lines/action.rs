//! What a line asks for, and the line that answers it.

use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{
    DEFAULT_TIMEOUT_SECS, EvalRequest, EvalResponse, ExecRequest, ExecResponse, PingResponse,
};
use serde_json::{Value, json};

/// Most seconds that a line may ask for: a year, as in the API.
const MAX_TIMEOUT: f64 = 31_536_000.0;

/// What a line asks of a sandbox: each is a verb of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Whether the agent answers.
    Ping,
    /// A command to its end.
    Exec(ExecRequest),
    /// Code in the warm interpreter.
    Eval(EvalRequest),
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Of a ping.
    Pong(PingResponse),
    /// Of a command.
    Executed(ExecResponse),
    /// Of an evaluation.
    Evaluated(EvalResponse),
}

impl Action {
    /// Out of a line; the refusal is for its sender.
    pub(super) fn of(line: &[u8]) -> Result<Self, String> {
        let asked: Value =
            serde_json::from_slice(line).map_err(|e| format!("the request is no JSON in one line: {e}"))?;
        let timeout_secs = timeout(asked.get("timeout"))?;
        match asked.get("action").and_then(Value::as_str) {
            Some("ping") => Ok(Self::Ping),
            Some("exec") => Ok(Self::Exec(ExecRequest::of(args(asked.get("args"))?, timeout_secs))),
            Some("eval") => {
                let code = asked.get("code").and_then(Value::as_str).ok_or("eval needs `code`, a text")?;
                Ok(Self::Eval(EvalRequest { code: code.to_owned(), timeout_secs }))
            }
            other => Err(format!("unknown action: {}", other.unwrap_or("none").escape_debug())),
        }
    }

    /// The route that does the same.
    pub(crate) fn route(&self) -> &'static str {
        match self {
            Self::Ping => "/v1/sandboxes/{id}/ping",
            Self::Exec(_) => "/v1/sandboxes/{id}/exec",
            Self::Eval(_) => "/v1/sandboxes/{id}/eval",
        }
    }

    /// Its path for a sandbox, to be posted to.
    pub fn path(&self, id: &SandboxId) -> String {
        self.route().replace("{id}", id.as_str())
    }
}

fn args(given: Option<&Value>) -> Result<Vec<String>, String> {
    let words = given.and_then(Value::as_array).filter(|words| !words.is_empty());
    let words = words.ok_or("exec needs `args`, a list that begins with a program")?;
    let word = |word: &Value| word.as_str().map(str::to_owned);
    words.iter().map(word).collect::<Option<_>>().ok_or_else(|| "each of `args` is a text".to_owned())
}

/// Whole seconds, at least as many as asked for.
fn timeout(given: Option<&Value>) -> Result<u64, String> {
    let Some(given) = given.filter(|given| !given.is_null()) else { return Ok(DEFAULT_TIMEOUT_SECS) };
    match given.as_f64().filter(|seconds| (0.0..=MAX_TIMEOUT).contains(seconds)) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was looked at")]
        Some(seconds) => Ok(seconds.ceil().max(1.0) as u64),
        None => Err("`timeout` is a number of seconds, at most a year".to_owned()),
    }
}

/// The line, its end among it.
pub(super) fn written(outcome: Result<Outcome, String>) -> Vec<u8> {
    let value = match outcome {
        Ok(Outcome::Executed(done)) if done.timed_out => {
            failed("TimeoutExpired: the command was killed at its timeout")
        }
        Ok(Outcome::Executed(done)) => json!(done),
        Ok(Outcome::Pong(pong)) => json!(pong),
        Ok(Outcome::Evaluated(EvalResponse { error: Some(error), .. })) => failed(&error),
        // A client takes any `error`, also an empty one, for a failure.
        Ok(Outcome::Evaluated(done)) => json!({
            "result": done.result, "exit_code": done.exit_code, "stdout": done.stdout, "stderr": done.stderr,
            "truncated": done.truncated,
        }),
        Err(error) => failed(&error),
    };
    format!("{value}\n").into_bytes()
}

fn failed(error: &str) -> Value {
    json!({ "error": error, "exit_code": 1 })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(line: &str) -> Result<Action, String> {
        Action::of(line.as_bytes())
    }

    #[test]
    fn each_verb_as_published_clients_write_it() {
        assert_eq!(of(r#"{"action":"ping"}"#), Ok(Action::Ping));
        let exec = of(r#"{"action":"exec","args":["/bin/sh","-c","true"],"timeout":30}"#);
        assert_eq!(exec, Ok(Action::Exec(ExecRequest::of(["/bin/sh", "-c", "true"], 30))));
        let eval = EvalRequest { code: "1+1".to_owned(), timeout_secs: 30 };
        assert_eq!(of(r#"{"action":"eval","code":"1+1"}"#), Ok(Action::Eval(eval)));
    }

    #[test]
    fn fractions_of_seconds_are_rounded_up_and_nonsense_is_refused() {
        let timeout = |text: &str| match of(&format!(r#"{{"action":"exec","args":["a"],"timeout":{text}}}"#))
        {
            Ok(Action::Exec(request)) => Some(request.timeout_secs),
            _ => None,
        };
        assert_eq!((timeout("0.2"), timeout("1.01"), timeout("null")), (Some(1), Some(2), Some(30)));
        assert_eq!((timeout("-1"), timeout("1e300"), timeout("\"5\"")), (None, None, None));
    }

    #[test]
    fn what_is_none_of_them_says_why() {
        assert_eq!(of(r#"{"action":"reboot"}"#).unwrap_err(), "unknown action: reboot");
        for (line, why) in [
            ("POST / HTTP/1.1", "no JSON"),
            ("[]", "unknown action: none"),
            (r#"{"action":"exec","args":[]}"#, "a program"),
            (r#"{"action":"exec","args":"ls"}"#, "a list"),
            (r#"{"action":"exec","args":["a",1]}"#, "a text"),
            (r#"{"action":"eval"}"#, "code"),
        ] {
            let refusal = of(line).unwrap_err();
            assert!(refusal.contains(why), "{line}: {refusal}");
        }
    }

    #[test]
    fn a_value_has_no_error_and_a_failure_has_one() {
        let mut done = EvalResponse {
            result: Some("2".to_owned()),
            error: None,
            exit_code: 0,
            result_json: Some("2".to_owned()),
            traceback: None,
            stdout: String::new(),
            stderr: String::new(),
            timed_out: false,
            truncated: false,
            micros: 1,
        };
        let line = |outcome| serde_json::from_slice::<Value>(&written(outcome)).unwrap();
        let value = line(Ok(Outcome::Evaluated(done.clone())));
        assert_eq!((value["result"].as_str(), value.get("error")), (Some("2"), None));
        done.error = Some("NameError: x".to_owned());
        let value = line(Ok(Outcome::Evaluated(done)));
        assert_eq!((value["error"].as_str(), value["exit_code"].as_i64()), (Some("NameError: x"), Some(1)));
        assert_eq!(line(Err("gone\n".to_owned()))["error"], "gone\n");
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_action_or_a_refusal(line: Vec<u8>) {
            let _ = Action::of(&line);
        }
    }
}
