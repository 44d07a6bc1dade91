//! Code contexts: interpreters in which code is run while somebody watches, as notebooks do. What E2B's code interpreter
//! serves on port 49999.
//!
//! The first Python context is the warm interpreter: what a snapshot imported is there for the first run of a child.

mod lines;
mod routes;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::interpreter::{Interpreter, Language};
use crate::process::Spawner;
use crate::users::{self, DEFAULT_USER};

pub(crate) use routes::{execute, manage};

/// Most contexts; each is a process of its own once it has run something.
const CONTEXTS_MAX: usize = 64;

/// One interpreter with a name.
#[derive(Debug, Clone)]
struct Context {
    id: String,
    language: Language,
    cwd: String,
    interpreter: Interpreter,
    /// Runs begun in it.
    runs: Arc<AtomicU64>,
}

/// A context as callers see it.
#[derive(Debug, Serialize)]
struct Shown {
    id: String,
    language: &'static str,
    cwd: String,
}

/// Why there is no such context.
#[derive(Debug, thiserror::Error)]
enum ContextError {
    #[error("Context {0:.60} not found")]
    Unknown(String),
    #[error("the language {0:.40} is not supported; there are python, javascript and bash")]
    Language(String),
    #[error("{0:?} is no folder")]
    Cwd(String),
    #[error("{CONTEXTS_MAX} contexts are there already; remove some")]
    TooMany,
}

/// All contexts, by id. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Contexts {
    spawner: Spawner,
    warm: Interpreter,
    table: Arc<Mutex<BTreeMap<String, Context>>>,
}

impl Contexts {
    /// None but the warm interpreter's.
    pub(crate) fn new(spawner: Spawner, warm: Interpreter) -> Self {
        Self { spawner, warm, table: Arc::default() }
    }

    /// The warm interpreter, and those of all contexts.
    pub(crate) fn interpreters(&self) -> Vec<Interpreter> {
        let table = self.table();
        let others = table.values().filter(|context| context.id != default_id(Language::Python));
        std::iter::once(self.warm.clone()).chain(others.map(|context| context.interpreter.clone())).collect()
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<String, Context>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn list(&self) -> Vec<Shown> {
        self.table().values().map(Context::shown).collect()
    }

    fn find(&self, id: &str) -> Result<Context, ContextError> {
        self.table().get(id).cloned().ok_or_else(|| ContextError::Unknown(id.to_owned()))
    }

    /// The context of a language that is used where none is named; made when first needed.
    fn default_of(&self, language: Language) -> Result<Context, ContextError> {
        let id = default_id(language);
        if let Ok(context) = self.find(&id) {
            return Ok(context);
        }
        if language == Language::Python {
            let cwd = users::find("root").map_or_else(|_| "/".to_owned(), |root| root.home);
            return self.put(Context {
                id,
                language,
                cwd,
                interpreter: self.warm.clone(),
                runs: Arc::default(),
            });
        }
        self.make(id, language, default_cwd())
    }

    fn create(&self, language: Option<&str>, cwd: Option<String>) -> Result<Context, ContextError> {
        let named = language.unwrap_or("python");
        let language = Language::named(named).ok_or_else(|| ContextError::Language(named.to_owned()))?;
        let cwd = cwd.filter(|cwd| !cwd.is_empty()).unwrap_or_else(default_cwd);
        if !std::path::Path::new(&cwd).is_dir() {
            return Err(ContextError::Cwd(cwd));
        }
        self.make(uuid(), language, cwd)
    }

    fn make(&self, id: String, language: Language, cwd: String) -> Result<Context, ContextError> {
        let (interpreter, owner) = Interpreter::new(self.spawner.clone(), language, Some(cwd.clone()));
        tokio::task::spawn_local(owner);
        self.put(Context { id, language, cwd, interpreter, runs: Arc::default() })
    }

    fn put(&self, context: Context) -> Result<Context, ContextError> {
        let mut table = self.table();
        if table.len() >= CONTEXTS_MAX {
            return Err(ContextError::TooMany);
        }
        Ok(table.entry(context.id.clone()).or_insert(context).clone())
    }

    /// Its process ends with it; that of the warm interpreter is only begun anew.
    async fn remove(&self, id: &str) -> Result<(), ContextError> {
        let removed = self.table().remove(id).ok_or_else(|| ContextError::Unknown(id.to_owned()))?;
        removed.interpreter.restart().await;
        Ok(())
    }
}

impl Context {
    fn shown(&self) -> Shown {
        Shown { id: self.id.clone(), language: self.language.name(), cwd: self.cwd.clone() }
    }

    /// The number of a run that begins.
    fn next_run(&self) -> u64 {
        self.runs.fetch_add(1, Ordering::Relaxed) + 1
    }
}

fn default_id(language: Language) -> String {
    format!("default-{}", language.name())
}

/// Where E2B's contexts work, where there is such a folder.
fn default_cwd() -> String {
    let home = users::find(DEFAULT_USER).map(|user| user.home).unwrap_or_default();
    if std::path::Path::new(&home).is_dir() { home } else { "/".to_owned() }
}

/// A random version 4 UUID (RFC 9562).
fn uuid() -> String {
    let bits = rand::random::<u128>() & !(0xf << 76) & !(0x3 << 62) | (4 << 76) | (2 << 62);
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_random_uuids() {
        let id = uuid();
        assert_eq!(id.len(), 36);
        assert_eq!(id.as_bytes()[14], b'4');
        assert!(b"89ab".contains(&id.as_bytes()[19]), "{id}");
        assert_ne!(id, uuid());
    }
}
