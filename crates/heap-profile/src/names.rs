//! Functions at the addresses of a stack.

use std::ffi::c_void;

/// A function that the frame of an address is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// As it is written in the source.
    pub name: String,
    /// As the linker knows it.
    pub system_name: String,
    pub file: String,
    pub line: u32,
}

/// The functions of one frame, given the address to which it returns: those that were inlined into each
/// other, the innermost first. The address itself where there is no symbol. Takes long at first, when symbols
/// are read.
pub fn functions(address: usize) -> Vec<Function> {
    let mut found = Vec::new();
    backtrace::resolve(address as *mut c_void, |symbol| {
        let Some(name) = symbol.name() else { return };
        let file = symbol.filename().map(|path| path.display().to_string()).unwrap_or_default();
        found.push(Function {
            // Without the hash of the crate.
            name: format!("{name:#}"),
            system_name: name.as_str().unwrap_or_default().to_owned(),
            file,
            line: symbol.lineno().unwrap_or(0),
        });
    });
    if found.is_empty() {
        let name = format!("{address:#x}");
        found.push(Function { system_name: name.clone(), name, file: String::new(), line: 0 });
    }
    found
}

/// Whether a function is one of the profile's, or part of the walk along the stack.
pub fn is_of_profile(name: &str) -> bool {
    name.contains("heap_profile::") || name.starts_with("backtrace::")
}
