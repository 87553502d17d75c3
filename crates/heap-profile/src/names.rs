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

/// Gives back what was read of symbols. They are read again with the next name.
pub fn forget_symbols() {
    backtrace::clear_symbol_cache();
}

/// The functions of a stack from the code that asked for memory on: without the profile itself, and without
/// the standard library's way to the allocator. `frames` has those of each frame, the innermost first.
pub fn from_caller<'f, T>(frames: &[T], functions: impl Fn(&T) -> &'f [Function]) -> &[T] {
    let own =
        frames.iter().rposition(|frame| functions(frame).iter().any(|found| is_of_profile(&found.name)));
    let rest = &frames[own.map_or(0, |last| last + 1)..];
    let is_on_the_way = |frame: &T| functions(frame).iter().all(|found| is_of_library(&found.name));
    let caller = rest.iter().position(|frame| !is_on_the_way(frame));
    &rest[caller.unwrap_or(0)..]
}

/// Whether a function is one of the profile's, or part of the walk along the stack.
fn is_of_profile(name: &str) -> bool {
    name.contains("heap_profile::") || name.starts_with("backtrace::")
}

fn is_of_library(name: &str) -> bool {
    let name = name.trim_start_matches(['<', '&']);
    ["alloc::", "core::", "std::", "__rust", "__rg_"].iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller<'n>(names: &[&'n str]) -> Vec<&'n str> {
        let function = |name: &&str| {
            let name = (*name).to_owned();
            vec![Function { system_name: name.clone(), name, file: String::new(), line: 1 }]
        };
        let known: Vec<Vec<Function>> = names.iter().map(function).collect();
        let frames: Vec<usize> = (0..names.len()).collect();
        from_caller(&frames, |frame| known[*frame].as_slice()).iter().map(|frame| names[*frame]).collect()
    }

    #[test]
    fn a_stack_begins_with_the_code_that_asked_for_memory() {
        let walk = ["backtrace::trace", "heap_profile::sample", "<heap_profile::Sampled<A> as X>::alloc"];
        let library = ["__rustc::__rust_alloc", "<alloc::raw_vec::RawVecInner>::grow"];
        let ours = ["mvcc::put", "alloc::boxed::call", "kv_server::run"];
        assert_eq!(caller(&[&walk[..], &library, &ours].concat()), ours);
        assert_eq!(caller(&ours), ours);
        // A thread of the library alone.
        assert_eq!(caller(&[&walk[..], &library].concat()), library);
    }
}
