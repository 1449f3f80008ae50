//! Tests unwinding of arm64 code on every host: `data/aarch64.s` contains the code and its unwind information.

use std::path::Path;

use _native::modules::Modules;
use _native::snapshot::Registers;
use _native::symbols::ElfFile;
use _native::unwind::{End, Unwinder, Walk};

const BIAS: u64 = 0x7f00_0000_0000;
const STACK: u64 = 0x7ffd_0000_1000;
/// The signature that paciasp adds to an address.
const SIGNATURE: u64 = 0x0055_0000_0000_0000;
/// The address of the kernel's `[uprobes]` page.
const UPROBES: u64 = 0x7fff_ffff_f000;
/// The frame pointers of `by_pointer`, which called `leaf`, and of `signed`, which called `by_pointer`.
const FRAME_POINTERS: [u64; 2] = [STACK, STACK + 16];

/// Code addresses: the return addresses in `root`, `signed` and `by_pointer`, the start of `leaf`, and the code
/// to which signal handlers return.
struct Code {
    modules: Modules,
    root: u64,
    signed: u64,
    by_pointer: u64,
    leaf: u64,
    restore: u64,
}

fn code() -> Code {
    let image = include_bytes!("data/aarch64.elf").to_vec();
    let elf = ElfFile::from_bytes(image, Path::new("[vdso]")).unwrap();
    let text = BIAS + elf.section_start(".text").unwrap();
    let modules = Modules::fixed(vec![(elf, BIAS)]);
    Code {
        modules,
        root: text + 4,
        signed: text + 24,
        by_pointer: text + 52,
        leaf: text + 56,
        restore: text + 68,
    }
}

impl Code {
    /// Return the stack of `leaf` with this return address of `signed`.
    fn stack(&self, returned: u64) -> Vec<u64> {
        vec![FRAME_POINTERS[1], self.signed, 0, returned, 0, 0, 0]
    }

    fn registers(&self) -> Registers {
        Registers { ip: self.leaf, sp: STACK, bp: Some(FRAME_POINTERS[0]), lr: Some(self.by_pointer) }
    }

    fn callers(&self) -> [u64; 3] {
        [self.by_pointer, self.signed, self.root]
    }

    fn walk(&self, registers: Registers, words: &[u64], returns: &[(u64, u64)]) -> Walk {
        let stack: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Unwinder::new(&self.modules).walk(&self.modules, registers, &stack, returns)
    }
}

#[test]
fn unwinds_through_the_link_register_and_signed_addresses() {
    let code = code();
    for signature in [0, SIGNATURE] {
        let walk = code.walk(code.registers(), &code.stack(code.root | signature), &[]);
        assert_eq!((walk.end, walk.inferred), (End::Root, false));
        assert_eq!(walk.addresses[0], code.leaf);
        assert_eq!(walk.addresses[1..], code.callers());
    }
}

#[test]
fn a_function_is_unwound_before_and_after_its_prologue() {
    let code = code();
    let start = code.signed - 16;
    let (bp, lr) = (Some(0), Some(code.root | SIGNATURE));
    // paciasp; stp; then mov x29, sp
    let before = Registers { ip: start + 4, sp: STACK, bp, lr };
    assert_eq!(code.walk(before, &[0; 4], &[]).addresses[1..], [code.root]);
    let after = Registers { ip: start + 8, sp: STACK, bp, lr: None };
    assert_eq!(code.walk(after, &[0, code.root | SIGNATURE, 0, 0], &[]).addresses[1..], [code.root]);
}

#[test]
fn an_unknown_frame_pointer_is_inferred() {
    let code = code();
    let registers = Registers { bp: None, ..code.registers() };
    let walk = code.walk(registers, &code.stack(code.root), &[]);
    assert_eq!((walk.end, walk.inferred), (End::Root, true));
    assert_eq!(walk.addresses[1..], code.callers());
}

#[test]
fn an_unknown_link_register_is_inferred_from_the_calls_of_the_function() {
    let code = code();
    let (direct, other_root) = (code.leaf + 40, code.leaf + 24);
    let registers = Registers { bp: None, lr: None, ..code.registers() };
    let walk = code.walk(registers, &[0, other_root, 0, 0], &[]);
    assert_eq!((walk.end, walk.inferred), (End::Root, true));
    assert_eq!(walk.addresses[1..], [direct, other_root]);
    // The stack does not fit the only direct call.
    let walk = code.walk(registers, &code.stack(code.root), &[]);
    assert_eq!((walk.end, walk.addresses), (End::NoLinkRegister, vec![code.leaf]));
}

#[test]
fn the_frame_of_a_signal_handler_is_unwound() {
    let code = code();
    let sp = STACK + 1024;
    // In the handler, which has called nothing: its return address is in x30.
    let registers = Registers { ip: code.leaf, sp: STACK, bp: Some(0), lr: Some(code.restore) };
    let mut words = vec![0; 128];
    let saved = (128 + 176 + 8) / 8;
    words[saved + 29..=saved + 32].copy_from_slice(&[sp, code.by_pointer, sp, code.leaf]);
    words.extend([sp + 16, code.signed, 0, code.root, 0, 0]);
    let walk = code.walk(registers, &words, &[]);
    assert_eq!(walk.addresses[..3], [code.leaf, code.restore, code.leaf]);
    assert_eq!((walk.end, &walk.addresses[3..]), (End::Root, &code.callers()[..]));
}

#[test]
fn return_addresses_of_probed_calls_are_found_by_the_stack_pointer() {
    let code = code();
    // The kernel replaced the return address of `signed` in x30; paciasp signed the replacement.
    let returns = [(STACK + 16 + 32, code.root)];
    let walk = code.walk(code.registers(), &code.stack(UPROBES | SIGNATURE), &returns);
    assert_eq!((walk.end, &walk.addresses[1..]), (End::Root, &code.callers()[..]));
    // The thread is in the [uprobes] page: `signed` has returned.
    let registers = Registers { ip: UPROBES, sp: STACK + 48, bp: Some(0), lr: Some(UPROBES) };
    let walk = code.walk(registers, &[0, 0], &returns);
    assert_eq!((walk.end, walk.addresses), (End::Root, vec![code.root]));
}
