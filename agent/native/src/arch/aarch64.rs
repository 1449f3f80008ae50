//! arm64, which DWARF and ELF call AArch64.

use gimli::{AArch64, Vendor};

use super::{Arch, Call, ImportStub, PerfRegisters, SignalFrame, ThreadDescriptor};

/// The 64-bit Arm architecture.
pub static AARCH64: Arch = Arch {
    name: "aarch64",
    return_address: AArch64::X30,
    stack_pointer: AArch64::SP,
    frame_pointer: AArch64::X29,
    has_link_register: true,
    vendor: Vendor::AArch64, // DW_CFA_AARCH64_negate_ra_state
    // Linux maps user memory above 2^48 only on request (Documentation/arch/arm64/memory.rst). The bits above
    // hold the signature of a return address that the instruction paciasp has signed.
    address_bits: (1 << 48) - 1,
    // The kernel replaces the link register and records the stack pointer at the function's entry, which equals
    // the stack pointer after the return (arch/arm64/kernel/probes/uprobes.c).
    above_return_probe: 0,
    // struct rt_sigframe (arch/arm64/kernel/signal.c): siginfo (128 bytes), ucontext (176 bytes before
    // uc_mcontext), and struct sigcontext: fault_address, regs[31], sp and pc.
    signal_frame: Some(SignalFrame {
        code: &[0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4], // mov x8, #139 (rt_sigreturn); svc #0
        bp: REGISTERS + 8 * 29,
        lr: REGISTERS + 8 * 30,
        sp: REGISTERS + 8 * 31,
        ip: REGISTERS + 8 * 32,
    }),
    call_bytes: 4,
    decode_call,
    import_stubs: Some(import_stubs),
    is_stepped,
    perf: PerfRegisters { bp: 29, lr: Some(30), sp: 31, ip: 32 },
    audit: 0xc000_00b7, // AUDIT_ARCH_AARCH64
    // The id follows 24 unused pointers and two pointers that link all descriptors.
    descriptor: ThreadDescriptor { own: &[], tid: 0xd0, tids: 0xc0..0x200 },
};

/// Offset of `regs` in the frame of a signal handler.
const REGISTERS: u64 = 128 + 176 + 8;

/// Return the instruction in the last four bytes.
fn last(code: &[u8]) -> Option<u32> {
    code.last_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// Decode the call instruction that ends where `code` ends, at `address`.
///
/// Source: Arm Architecture Reference Manual for A-profile, C6.2: BL, BLR, BLRAA, BLRAB and their variants with
/// the modifier zero.
fn decode_call(code: &[u8], address: u64) -> Option<Call> {
    let instruction = last(code)?;
    if instruction & 0xfc00_0000 == 0x9400_0000 {
        // The low 26 bits are a signed offset from this instruction, counted in instructions.
        let offset = i64::from((instruction << 6).cast_signed() >> 4);
        return Some(Call::Direct(address.wrapping_sub(4).wrapping_add_signed(offset)));
    }
    let is_indirect = instruction & 0xffff_fc1f == 0xd63f_0000 // blr
        || instruction & 0xffff_f800 == 0xd73f_0800 // blraa, blrab
        || instruction & 0xffff_f81f == 0xd63f_081f; // blraaz, blrabz
    is_indirect.then_some(Call::Indirect)
}

/// Find stubs of the form `adrp x16, page; ldr x17, [x16, #offset]; …`, which may begin with `bti c`.
///
/// Source: ELF for the Arm 64-bit Architecture (AArch64), "Procedure Linkage Table".
fn import_stubs(code: &[u8], start: u64) -> Vec<ImportStub> {
    const BTI_C: u32 = 0xd503_245f;
    let (words, _) = code.as_chunks::<4>();
    let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let mut found = Vec::new();
    for (index, pair) in words.windows(2).enumerate() {
        let [page, load] = [pair[0], pair[1]];
        if page & 0x9f00_001f != 0x9000_0010 || load & 0xffc0_03ff != 0xf940_0211 {
            continue;
        }
        let address = start.wrapping_add(4 * index as u64);
        // A signed offset in pages: its upper 19 bits are in bits 5 to 23, its lower two in bits 29 and 30.
        let upper = i64::from((page << 8).cast_signed() >> 13) << 2;
        let pages = upper | i64::from(page >> 29 & 3);
        let slot = (address & !0xfff)
            .wrapping_add_signed(pages << 12)
            .wrapping_add(u64::from(load >> 10 & 0xfff) * 8);
        found.push(ImportStub { address, slot });
        if index > 0 && words[index - 1] == BTI_C {
            found.push(ImportStub { address: address.wrapping_sub(4), slot });
        }
    }
    found
}

/// Return true if the kernel single-steps the first instruction. The kernel simulates branches and address
/// computations (arch/arm64/kernel/probes/decode-insn.c).
fn is_stepped(code: &[u8]) -> bool {
    const SIMULATED: [(u32, u32); 8] = [
        (0x7c00_0000, 0x1400_0000), // b, bl
        (0xff00_0010, 0x5400_0000), // b.cond
        (0x7e00_0000, 0x3400_0000), // cbz, cbnz
        (0x7e00_0000, 0x3600_0000), // tbz, tbnz
        (0xff9f_fc1f, 0xd61f_0000), // br, blr, ret
        (0x1f00_0000, 0x1000_0000), // adr, adrp
        (0xbf00_0000, 0x1800_0000), // ldr of a literal
        (0xff00_0000, 0x9800_0000), // ldrsw of a literal
    ];
    let first = code.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    !first.is_some_and(|first| SIMULATED.iter().any(|(mask, value)| first & mask == *value))
}

/// Code that runs only on this architecture.
#[cfg(target_arch = "aarch64")]
pub mod host {
    use libc::user_regs_struct;

    use crate::snapshot::Registers;

    /// This architecture has only openat.
    pub const SYS_CREAT: Option<libc::c_long> = None;
    /// This architecture has only openat.
    pub const SYS_OPEN: Option<libc::c_long> = None;
    /// On this architecture, functions with return probes return through a breakpoint.
    pub const SYS_URETPROBE: Option<libc::c_long> = None;

    /// The instruction svc #0.
    const SYSTEM_CALL: [u8; 4] = [0x01, 0x00, 0x00, 0xd4];

    /// Return the registers of a thread that ptrace has stopped, with the number and the first argument of
    /// its system call. `code` reads the code at an address.
    ///
    /// ptrace does not return the kernel's `syscallno` and `orig_x0`. During a system call, x8 and x0 still hold
    /// the values from its entry. If the kernel will restart the system call, it moves the instruction pointer
    /// back to the svc instruction before the stop (arch/arm64/kernel/signal.c, do_signal).
    pub fn of_stopped(
        registers: &user_regs_struct,
        code: impl Fn(u64) -> Option<[u8; 4]>,
    ) -> (Registers, i32, u64) {
        let [bp, lr] = [registers.regs[29], registers.regs[30]];
        let found = Registers { ip: registers.pc, sp: registers.sp, bp: Some(bp), lr: Some(lr) };
        let in_call = [registers.pc, registers.pc.wrapping_sub(4)]
            .into_iter()
            .any(|address| code(address) == Some(SYSTEM_CALL));
        (found, if in_call { registers.regs[8] as i32 } else { -1 }, registers.regs[0])
    }

    /// Do almost nothing, so that the duration of a probed call is the cost of the probe.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    pub extern "C" fn innoscope_calibration(value: u64) -> u64 {
        std::arch::naked_asm!("b 2f", "2: add x0, x0, #1", "ret")
    }

    /// Do almost nothing, but begin with an instruction that the kernel has to single-step.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    pub extern "C" fn innoscope_calibration_stepped(value: u64) -> u64 {
        std::arch::naked_asm!("add x0, x0, #1", "ret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(instructions: &[u32]) -> Vec<u8> {
        instructions.iter().flat_map(|one| one.to_le_bytes()).collect()
    }

    #[test]
    fn a_direct_call_has_its_target() {
        let call = |instruction| decode_call(&code(&[0xd503_201f, instruction]), 0x1008);
        assert_eq!(call(0x9400_0001), Some(Call::Direct(0x1008)), "bl .+4");
        assert_eq!(call(0x97ff_ffff), Some(Call::Direct(0x1000)), "bl .-4");
    }

    #[test]
    fn indirect_calls_are_recognized() {
        // blr x3; blraa x1, x2; blrab x1, sp; blraaz x5; blrabz x5
        for call in [0xd63f_0060, 0xd73f_0822, 0xd73f_0c3f, 0xd63f_08bf, 0xd63f_0cbf] {
            assert_eq!(decode_call(&code(&[call]), 0x1000), Some(Call::Indirect), "{call:x}");
        }
    }

    #[test]
    fn other_instructions_are_no_calls() {
        // nop; b .+4; br x16; ret; svc #0
        for other in [0xd503_201f, 0x1400_0001, 0xd61f_0200, 0xd65f_03c0, 0xd400_0001] {
            assert_eq!(decode_call(&code(&[other]), 0x1000), None, "{other:x}");
        }
        assert_eq!(decode_call(&[0, 0, 0x94], 0x1000), None);
    }

    #[test]
    fn stubs_for_imported_functions_are_found() {
        // adrp x16, +2 pages; ldr x17, [x16, #0xfa8]; add x16, x16, #0xfa8; br x17; then a stub that begins
        // with bti c; adrp x16, -1 page
        let plt = [0xd000_0010, 0xf947_d611, 0x913e_a210, 0xd61f_0220, 0xd503_245f, 0xf0ff_fff0, 0xf947_d611];
        let slots = [(0x1010, 0x3fa8), (0x1024, 0xfa8), (0x1020, 0xfa8)];
        let slots = slots.map(|(address, slot)| ImportStub { address, slot });
        assert_eq!(import_stubs(&code(&plt), 0x1010), slots);
    }

    #[test]
    fn branches_are_not_single_stepped() {
        // b .+4; cbz x0, .+8; adrp x16, 0; ret
        for simulated in [0x1400_0001, 0xb400_0040, 0x9000_0010, 0xd65f_03c0] {
            assert!(!is_stepped(&code(&[simulated])), "{simulated:x}");
        }
        // stp x29, x30, [sp, #-16]!; paciasp; sub sp, sp, #16; add x0, x0, #1
        for stepped in [0xa9bf_7bfd, 0xd503_233f, 0xd100_43ff, 0x9100_0400] {
            assert!(is_stepped(&code(&[stepped])), "{stepped:x}");
        }
    }

    #[test]
    fn signatures_are_removed_from_addresses() {
        assert_eq!(AARCH64.strip(0x0038_ffff_8000_1234), 0xffff_8000_1234);
        assert_eq!(AARCH64.strip(0xffff_8000_1234), 0xffff_8000_1234);
    }
}
