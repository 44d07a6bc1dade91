//! Instructions into steps: what is done, as whom, where, with which variables.

use std::collections::BTreeMap;

use forkd_protocol::guest::ImageSettings;
use serde::Serialize;

use super::at_line;
use super::read::{Instruction, What};
use super::words::{Variables, expand};
use crate::error::CliError;

/// Something that changes the disk. What it consists of decides whether it was done before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Step {
    #[serde(skip)]
    pub(super) line: usize,
    pub(super) what: Deed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) enum Deed {
    /// A program is run to its end.
    Run { args: Vec<String>, env: BTreeMap<String, String>, user: Option<String>, workdir: String },
    /// Files of the context; `to` is absolute, and a folder where it ends with `/`.
    Copy { owner: String, from: Vec<String>, to: String },
    /// A folder is made where it is missing.
    Folder(String),
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// How processes of the image are to be run.
    pub(super) settings: ImageSettings,
}

/// The image below, with the variables that are known before it is.
pub(super) fn base(all: &[Instruction], given: &Variables) -> Result<(usize, String), CliError> {
    let mut args = Variables::new();
    for instruction in all {
        let line = instruction.line;
        match &instruction.what {
            What::Arg(name, default) => {
                let value = argument(name, default.as_deref(), given, &args).map_err(|e| at_line(line, e))?;
                args.extend(value.map(|value| (name.clone(), value)));
            }
            What::From(image) => {
                let image = expand(image, &args).map_err(|e| at_line(line, e))?;
                return if image.is_empty() {
                    Err(at_line(line, "FROM names no image"))
                } else {
                    Ok((line, image))
                };
            }
            _ => {}
        }
    }
    Err(CliError::usage("the Dockerfile has no FROM"))
}

/// Arguments that were given and that no line asks for.
pub(super) fn unasked<'a>(all: &[Instruction], given: &'a Variables) -> Option<&'a str> {
    let asked = |name: &str| all.iter().any(|i| matches!(&i.what, What::Arg(asked, _) if asked == name));
    given.keys().map(String::as_str).find(|name| !asked(name))
}

/// What is to be done on top of an image that is run like this.
pub(super) fn plan(all: &[Instruction], given: &Variables, below: ImageSettings) -> Result<Plan, CliError> {
    let mut state = State { settings: below, args: Variables::new(), steps: Vec::new() };
    let begin = all.iter().position(|i| matches!(i.what, What::From(_))).unwrap_or_default();
    // Those before it are there for it, and below it where they are asked for again.
    let (before, after) = all.split_at(begin);
    let mut outer = Variables::new();
    for instruction in before {
        if let What::Arg(name, Some(default)) = &instruction.what {
            let value = expand(default, &outer).map_err(|e| at_line(instruction.line, e))?;
            outer.insert(name.clone(), value);
        }
    }
    outer.extend(given.clone());
    for instruction in after.iter().skip(1) {
        state.take(instruction, &outer).map_err(|why| at_line(instruction.line, why))?;
    }
    Ok(Plan { steps: state.steps, settings: state.settings })
}

struct State {
    settings: ImageSettings,
    args: Variables,
    steps: Vec<Step>,
}

impl State {
    fn take(&mut self, instruction: &Instruction, given: &Variables) -> Result<(), String> {
        let line = instruction.line;
        match instruction.what.clone() {
            What::From(_) => {}
            What::Arg(name, default) => {
                let value = argument(&name, default.as_deref(), given, &self.variables())?;
                self.args.extend(value.map(|value| (name, value)));
            }
            What::Env(pairs) => {
                // All of one line see what was before it.
                let known = self.variables();
                for (name, value) in pairs {
                    self.settings.env.insert(name, expand(&value, &known)?);
                }
            }
            What::Workdir(path) => {
                let path = self.absolute(&expand(&path, &self.variables())?);
                self.settings.workdir = Some(path.clone());
                self.steps.push(Step { line, what: Deed::Folder(path) });
            }
            What::User(user) => self.settings.user = Some(expand(&user, &self.variables())?),
            What::Cmd(words) => self.settings.cmd = words.into_args(),
            What::Entrypoint(words) => {
                self.settings.entrypoint = words.into_args();
                // What the image below passes to its own is nothing for this one.
                self.settings.cmd.clear();
            }
            What::Run(words) => {
                let env = self.variables();
                let workdir = self.settings.workdir.clone().unwrap_or_else(|| "/".to_owned());
                let what =
                    Deed::Run { args: words.into_args(), env, user: self.settings.user.clone(), workdir };
                self.steps.push(Step { line, what });
            }
            What::Copy { owner, from, to } => {
                let known = self.variables();
                let owner = owner.map_or_else(|| Ok("root".to_owned()), |owner| expand(&owner, &known))?;
                let from = from.iter().map(|path| expand(path, &known)).collect::<Result<_, _>>()?;
                let to = expand(&to, &known)?;
                let folder = if to.ends_with('/') || to == "." { "/" } else { "" };
                let to = format!("{}{folder}", self.absolute(&to).trim_end_matches('/'));
                self.steps.push(Step { line, what: Deed::Copy { owner, from, to } });
            }
        }
        Ok(())
    }

    /// An ENV is stronger than an ARG of its name.
    fn variables(&self) -> Variables {
        let mut all = self.args.clone();
        all.extend(self.settings.env.clone());
        all
    }

    fn absolute(&self, path: &str) -> String {
        let below = self.settings.workdir.as_deref().unwrap_or("/");
        let whole = if path.starts_with('/') { path.to_owned() } else { format!("{below}/{path}") };
        let mut parts: Vec<&str> = Vec::new();
        for part in whole.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                part => parts.push(part),
            }
        }
        format!("/{}", parts.join("/"))
    }
}

fn argument(
    name: &str,
    default: Option<&str>,
    given: &Variables,
    known: &Variables,
) -> Result<Option<String>, String> {
    match given.get(name) {
        Some(value) => Ok(Some(value.clone())),
        None => default.map(|default| expand(default, known)).transpose(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dockerfile::read::read;

    fn planned(text: &str, given: &[(&str, &str)]) -> Plan {
        let given = given.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let below = ImageSettings {
            env: [("PATH".to_owned(), "/bin".to_owned())].into(),
            cmd: vec!["below".into()],
            ..ImageSettings::default()
        };
        plan(&read(text).unwrap(), &given, below).unwrap()
    }

    #[test]
    fn a_step_has_what_the_lines_before_it_said() {
        let text = "FROM a\nARG V=1\nENV PATH=/x:$PATH W=$V\nWORKDIR /srv\nWORKDIR app\nUSER www:www\nRUN make\n\
                    COPY --chown=$V:$V a b/ ./\nCOPY c ../d\nENTRYPOINT [\"run\"]\n";
        let plan = planned(text, &[("V", "7")]);
        let deeds: Vec<_> = plan.steps.iter().map(|step| step.what.clone()).collect();
        assert_eq!(deeds[1], Deed::Folder("/srv/app".into()));
        let Deed::Run { args, env, user, workdir } = &deeds[2] else { panic!("{deeds:?}") };
        assert_eq!((args.last().unwrap().as_str(), user.as_deref()), ("make", Some("www:www")));
        assert_eq!((workdir.as_str(), env["PATH"].as_str(), env["W"].as_str()), ("/srv/app", "/x:/bin", "7"));
        let copied =
            Deed::Copy { owner: "7:7".into(), from: vec!["a".into(), "b/".into()], to: "/srv/app/".into() };
        assert_eq!(deeds[3], copied);
        assert!(matches!(&deeds[4], Deed::Copy { to, .. } if to == "/srv/d"));
        assert_eq!((plan.settings.entrypoint, plan.settings.cmd), (vec!["run".to_owned()], Vec::new()));
        assert!(!plan.settings.env.contains_key("V"));
    }

    #[test]
    fn arguments_before_from_are_for_it_and_below_it_where_they_are_asked_for_again() {
        let text = "ARG V=12\nFROM debian:$V\nRUN a$V\nARG V\nRUN b\n";
        let all = read(text).unwrap();
        assert_eq!(base(&all, &Variables::new()).unwrap(), (2, "debian:12".to_owned()));
        let given = [("V".to_owned(), "13".to_owned())].into();
        assert_eq!(base(&all, &given).unwrap().1, "debian:13");
        let env = |step: &Step| match &step.what {
            Deed::Run { env, .. } => env.get("V").cloned(),
            _ => None,
        };
        let plan = planned(text, &[]);
        assert_eq!((env(&plan.steps[0]), env(&plan.steps[1])), (None, Some("12".to_owned())));
        assert_eq!(unasked(&all, &given), None);
        assert_eq!(unasked(&all, &[("X".to_owned(), String::new())].into()), Some("X"));
        assert!(base(&read("FROM $NONE").unwrap(), &Variables::new()).is_err());
    }
}
