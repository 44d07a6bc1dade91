//! REST: routes that only translate.
