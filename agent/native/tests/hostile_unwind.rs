//! Tests unwind information with DWARF expressions: expressions from real files are evaluated, and endless
//! expressions are stopped early.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use _native::modules::Modules;
use _native::snapshot::Registers;
use _native::symbols::ElfFile;
use _native::unwind::{End, Unwinder};

const BIAS: u64 = 0x7f00_0000_0000;
const STACK: u64 = 0x7ffd_0000_1000;

/// A temporary directory, which is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("innoscope-unwind-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Compile a program from one source file.
    fn program(&self, source: &str, text: &str, options: &[&str]) -> Arc<ElfFile> {
        fs::write(self.0.join(source), text).unwrap();
        let mut compiler = Command::new("gcc");
        compiler.args(options).args(["-o", "program", source]).current_dir(&self.0);
        assert!(compiler.status().unwrap().success());
        let elf = ElfFile::open(&self.0.join("program")).unwrap();
        assert!(elf.section(".eh_frame").is_some());
        elf
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Errors are ignored: a leftover directory in the system's temporary directory does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn stack(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn the_expression_of_a_procedure_linkage_table_is_evaluated() {
    let folder = Folder::new("plt");
    let text = "#include <stdio.h>\nint main(void) { puts(\"x\"); return getchar(); }\n";
    let elf = folder.program("main.c", text, &["-O1", "-fcf-protection=none", "-Wl,-z,lazy"]);
    let plt = elf.section_start(".plt").unwrap() + BIAS;
    let modules = Modules::fixed(vec![(Arc::clone(&elf), BIAS)]);
    let mut unwinder = Unwinder::new(&modules);
    let (first, second) = (elf.entry() + BIAS + 0x100, elf.entry() + BIAS + 0x108);
    // The second PLT entry: the return address is on top of the stack at its start, and one word deeper after
    // its push instruction.
    for (at, caller) in [(16, first), (16 + 11, second)] {
        let registers = Registers { ip: plt + at, sp: STACK, bp: Some(0), lr: None };
        let walk = unwinder.walk(&modules, registers, &stack(&[first, second, 0]), &[]);
        assert_eq!(walk.addresses[1], caller, "+{at}");
    }
}

/// A function that calls one that aligns its stack. As GCC does, the latter stores its canonical frame address below
/// the frame pointer.
const ALIGNS: &str = "
    .text
    .cfi_startproc
    .cfi_undefined rip
    call aligns
    nop
    .cfi_endproc
aligns:
    .cfi_startproc
    .cfi_escape 0x0f,0x03,0x76,0x78,0x06    # DW_CFA_def_cfa_expression: DW_OP_breg6 -8; DW_OP_deref
    .cfi_escape 0x10,0x06,0x02,0x76,0x00    # DW_CFA_expression: rbp is at DW_OP_breg6 0
    .cfi_offset rip, -8
    nop
    .cfi_endproc
    .section .note.GNU-stack,\"\",@progbits
";

#[test]
fn the_expression_of_a_function_that_aligns_its_stack_reads_the_stack() {
    let folder = Folder::new("aligns");
    let elf = folder.program("main.s", ALIGNS, &["-nostartfiles", "-Wl,-e,0"]);
    let text = BIAS + elf.section_start(".text").unwrap();
    let modules = Modules::fixed(vec![(elf, BIAS)]);
    let registers = Registers { ip: text + 6, sp: STACK, bp: Some(STACK + 16), lr: None };
    // The word below the frame pointer is the canonical frame address, and the return address is below that.
    let words = [0, STACK + 48, 0, text + 6, 0, text + 5, 0];
    let walk = Unwinder::new(&modules).walk(&modules, registers, &stack(&words), &[]);
    assert_eq!((walk.addresses, walk.end, walk.inferred), (vec![text + 6, text + 5], End::Root, false));
    // The canonical frame address is not in the copied bytes.
    let walk = Unwinder::new(&modules).walk(&modules, registers, &stack(&words[..1]), &[]);
    assert_eq!((walk.addresses, walk.end), (vec![text + 6], End::BeyondCopy));
}

/// A function whose canonical frame address is an expression that jumps back to itself.
const LOOP: &str = "
    .text
    .globl main
main:
    .cfi_startproc
    .cfi_escape 0x0f,0x03,0x2f,0xfd,0xff
    .skip 65536, 0x90
    ret
    .cfi_endproc
    .section .note.GNU-stack,\"\",@progbits
";

#[test]
fn an_endless_expression_uses_up_the_budget_of_steps() {
    let folder = Folder::new("loop");
    let elf = folder.program("main.s", LOOP, &["-nostartfiles", "-Wl,-e,0"]);
    let modules = Modules::fixed(vec![(elf, BIAS)]);
    let start = modules.all()[0].start;
    let mut unwinder = Unwinder::new(&modules);
    let began = Instant::now();
    let mut walks = 0;
    let end = loop {
        let registers =
            Registers { ip: start + 64 + walks % 60_000, sp: STACK, bp: Some(STACK + 8), lr: None };
        let walk = unwinder.walk(&modules, registers, &stack(&[start + 64; 64]), &[]);
        assert!(walk.end != End::Root || walk.inferred);
        walks += 1;
        if walk.end == End::Budget {
            break walk.end;
        }
        assert!(walks < 1_000_000, "the budget of steps is never used up");
    };
    assert_eq!(end, End::Budget);
    assert!(unwinder.is_exhausted());
    let problems: Vec<String> = unwinder.problems(&modules).collect();
    assert!(problems[0].contains("/program: an expression in .eh_frame takes more than 500 operations"));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    unwinder.refill();
    assert!(!unwinder.is_exhausted());
}

/// Two functions without a caller call `middle`, which finds its caller by the frame pointer and calls `leaf`.
const FRAMES: &str = "
    .text
    .irp name, first, second
    .cfi_startproc
    .cfi_undefined rip
    call middle
    nop
    .cfi_endproc
    .endr
middle:
    .cfi_startproc
    .cfi_def_cfa rbp, 16
    .cfi_offset rbp, -16
    .cfi_offset rip, -8
    call leaf
    nop
    .cfi_endproc
leaf:
    .cfi_startproc
    nop
    .cfi_endproc
    .section .note.GNU-stack,\"\",@progbits
";

#[test]
fn a_missing_frame_pointer_is_inferred_if_there_is_one_solution() {
    let folder = Folder::new("frames");
    let elf = folder.program("main.s", FRAMES, &["-nostartfiles", "-Wl,-e,0"]);
    let text = BIAS + elf.section_start(".text").unwrap();
    let modules = Modules::fixed(vec![(elf, BIAS)]);
    let [after_first, after_second, after_middle, leaf] = [text + 5, text + 11, text + 17, text + 18];
    let registers = Registers { ip: leaf, sp: STACK, bp: None, lr: None };
    let walk = |words: &[u64]| Unwinder::new(&modules).walk(&modules, registers, &stack(words), &[]);

    let one = walk(&[after_middle, 7, 0, after_first, 0]);
    assert_eq!(
        (one.addresses, one.end, one.inferred),
        (vec![leaf, after_middle, after_first], End::Root, true)
    );
    let not_after_a_call = walk(&[after_middle, 7, 0, after_first + 1, 0]);
    assert_eq!((not_after_a_call.end, not_after_a_call.inferred), (End::NoFramePointer, false));
    let two = walk(&[after_middle, 7, 0, after_second, 0, after_first, 0]);
    assert_eq!(
        (two.addresses, two.end, two.inferred),
        (vec![leaf, after_middle], End::NoFramePointer, false)
    );
}

#[test]
fn inferring_uses_up_the_budget_of_steps() {
    let folder = Folder::new("budget");
    let elf = folder.program("main.s", FRAMES, &["-nostartfiles", "-Wl,-e,0"]);
    let text = BIAS + elf.section_start(".text").unwrap();
    let modules = Modules::fixed(vec![(elf, BIAS)]);
    let mut unwinder = Unwinder::new(&modules);
    // Each word is a return address into `middle`, and a saved frame pointer that points to the next word.
    let words: Vec<u64> = (0..16_384).flat_map(|word| [STACK + 16 * (word + 1), text + 17]).collect();
    let began = Instant::now();
    let walk = unwinder.walk(
        &modules,
        Registers { ip: text + 17, sp: STACK, bp: None, lr: None },
        &stack(&words),
        &[],
    );
    assert_eq!(walk.end, End::Budget);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[test]
fn entries_are_indexed_if_the_header_is_missing() {
    let libc = fs::read_to_string("/proc/self/maps").unwrap();
    let line = libc.lines().find(|line| line.contains("/libc.so") || line.contains("/libc-")).unwrap();
    let image = fs::read(&line[line.find('/').unwrap()..]).unwrap();
    let whole = ElfFile::from_bytes(image.clone(), Path::new("libc")).unwrap();
    let mut without = image;
    // Hide .eh_frame_hdr: rename the section, and clear the type of its program header.
    let names = b".eh_frame_hdr\0";
    let at = without.windows(names.len()).position(|window| window == names).unwrap();
    without[at + 1] = b'x';
    let headers = u64::from_le_bytes(without[0x20..0x28].try_into().unwrap()) as usize;
    for header in 0..usize::from(u16::from_le_bytes([without[0x38], without[0x39]])) {
        let kind = &mut without[headers + 56 * header..][..4];
        if *kind == 0x6474_e550_u32.to_le_bytes() {
            kind.fill(0);
        }
    }
    let without = ElfFile::from_bytes(without, Path::new("libc")).unwrap();
    assert!(without.section(".eh_frame_hdr").is_none());
    let [whole, without] = [whole, without].map(|elf| Modules::fixed(vec![(elf, BIAS)]));
    let (mut a, mut b) = (Unwinder::new(&whole), Unwinder::new(&without));
    let (start, end) = (whole.all()[0].start, whole.all()[0].end);
    let words: Vec<u64> = (0..64).map(|word| start + (end - start) / 65 * word).collect();
    for step in 0..2_000 {
        let registers =
            Registers { ip: start + (end - start) / 2_001 * step, sp: STACK, bp: Some(STACK + 64), lr: None };
        let walks = [
            a.walk(&whole, registers, &stack(&words), &[]),
            b.walk(&without, registers, &stack(&words), &[]),
        ];
        assert_eq!(walks[0].addresses, walks[1].addresses, "{registers:x?}");
    }
}
