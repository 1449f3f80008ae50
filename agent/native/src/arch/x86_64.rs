//! x86-64.

use gimli::Vendor;

use super::{Arch, Call, PerfRegisters, ThreadDescriptor};

/// The 64-bit architecture of Intel and AMD.
pub static X86_64: Arch = Arch {
    name: "x86_64",
    return_address: gimli::X86_64::RA,
    stack_pointer: gimli::X86_64::RSP,
    frame_pointer: gimli::X86_64::RBP,
    has_link_register: false,
    vendor: Vendor::Default,
    address_bits: u64::MAX,
    above_return_probe: 8, // the kernel records the slot of the return address, which the return pops
    signal_frame: None,
    call_bytes: 8, // REX prefix, opcode, ModRM, SIB and a 32-bit displacement
    decode_call,
    import_stubs: None,
    is_stepped,
    perf: PerfRegisters { bp: 6, sp: 7, ip: 8, lr: None },
    audit: 0xc000_003e, // AUDIT_ARCH_X86_64
    // The descriptor begins with a tcbhead_t, which contains the pointers to the descriptor. The offset of the
    // id is valid for glibc 2.17 to 2.42.
    descriptor: ThreadDescriptor { own: &[0, 16], tid: 0x2d0, tids: 0x200..0x400 },
};

/// Decode the call instruction that ends where `code` ends, at `address`. Return None if the code does not
/// end with a call.
///
/// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CALL: E8 cd, FF /2.
fn decode_call(code: &[u8], address: u64) -> Option<Call> {
    if let Some(&[0xe8, offset @ ..]) = code.last_chunk::<5>() {
        return Some(Call::Direct(address.wrapping_add_signed(i32::from_le_bytes(offset).into())));
    }
    (2..=7)
        .filter_map(|length| code.get(code.len().checked_sub(length)?..))
        .any(is_indirect)
        .then_some(Call::Indirect)
}

/// Return true if the bytes are exactly one indirect call (FF /2) without a prefix.
fn is_indirect(code: &[u8]) -> bool {
    let [0xff, modrm, rest @ ..] = code else { return false };
    if modrm & 0o070 != 0o020 {
        return false;
    }
    let (mode, register) = (modrm >> 6, modrm & 0o007);
    let has_sib = mode != 3 && register == 4;
    let displacement = match (mode, register) {
        (0, 5) | (2, _) => 4,
        (0, 4) if rest.first().is_some_and(|sib| sib & 0o007 == 5) => 4,
        (1, _) => 1,
        _ => 0,
    };
    rest.len() == usize::from(has_sib) + displacement
}

/// Return true if the kernel single-steps the first instruction. The kernel emulates push, nop, call and jump
/// (arch/x86/kernel/uprobes.c).
fn is_stepped(code: &[u8]) -> bool {
    let opcode = match code {
        [0x40..=0x4f, rest @ ..] => rest.first(),
        _ => code.first(),
    };
    !matches!(opcode, Some(0x50..=0x57 | 0x90 | 0xe8 | 0xe9 | 0xeb | 0x70..=0x7f))
}

/// Code that runs only on this architecture.
#[cfg(target_arch = "x86_64")]
pub mod host {
    use libc::user_regs_struct;

    use crate::snapshot::Registers;

    /// The system call creat, which has no flags argument.
    pub const SYS_CREAT: Option<libc::c_long> = Some(libc::SYS_creat);
    /// The system call open, whose second argument contains the flags.
    pub const SYS_OPEN: Option<libc::c_long> = Some(libc::SYS_open);
    /// The system call with which a function that has a return probe returns (arch/x86/entry/syscalls/syscall_64.tbl).
    pub const SYS_URETPROBE: Option<libc::c_long> = Some(335);

    /// Return the registers of a thread that ptrace has stopped, with the number and the first argument of
    /// its system call. `_code` reads the code at an address, which only other architectures need.
    pub fn of_stopped(
        registers: &user_regs_struct,
        _code: impl Fn(u64) -> Option<[u8; 4]>,
    ) -> (Registers, i32, u64) {
        let found = Registers { ip: registers.rip, sp: registers.rsp, bp: Some(registers.rbp), lr: None };
        (found, registers.orig_rax as i32, registers.rdi)
    }

    /// Do almost nothing, so that the duration of a probed call is the cost of the probe.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    pub extern "C" fn innoscope_calibration(value: u64) -> u64 {
        std::arch::naked_asm!("push rbp", "mov rbp, rsp", "lea rax, [rdi + 1]", "pop rbp", "ret")
    }

    /// Do almost nothing, but begin with an instruction that the kernel has to single-step.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    pub extern "C" fn innoscope_calibration_stepped(value: u64) -> u64 {
        std::arch::naked_asm!("lea rax, [rdi + 1]", "push rbp", "pop rbp", "ret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_direct_call_has_its_target() {
        assert_eq!(decode_call(&[0x90, 0xe8, 0xfb, 0xff, 0xff, 0xff], 0x1005), Some(Call::Direct(0x1000)));
    }

    #[test]
    fn indirect_calls_of_all_lengths_are_recognized() {
        let calls: [&[u8]; 8] = [
            &[0xff, 0xd0],                               // call *%rax
            &[0x41, 0xff, 0xd4],                         // call *%r12
            &[0xff, 0x10],                               // call *(%rax)
            &[0xff, 0x50, 0x18],                         // call *0x18(%rax)
            &[0xff, 0x90, 0x00, 0x01, 0x00, 0x00],       // call *0x100(%rax)
            &[0xff, 0x15, 0x00, 0x01, 0x00, 0x00],       // call *0x100(%rip)
            &[0x41, 0xff, 0x54, 0x24, 0x08],             // call *0x8(%r12)
            &[0xff, 0x14, 0xc5, 0x00, 0x01, 0x00, 0x00], // call *0x100(,%rax,8)
        ];
        for call in calls {
            let code = [&[0x90; 6], call].concat();
            assert_eq!(decode_call(&code, 0x1000), Some(Call::Indirect), "{call:x?}");
        }
    }

    #[test]
    fn other_instructions_are_no_calls() {
        for code in [&[0x90; 8][..], &[0xff, 0xe0], &[0xff], &[], &[0x0f, 0x05], &[0xff, 0x25, 0, 1, 0, 0]] {
            assert_eq!(decode_call(code, 0x1000), None, "{code:x?}");
        }
    }
}
