//! Decides from machine code whether the instruction before an address is a call, as it is for every return
//! address.

/// Maximum length of a call instruction, in bytes: REX prefix, opcode, ModRM, SIB and a 32-bit displacement.
pub const MAX_BYTES: usize = 8;

/// The instruction before a return address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// A call to the function at this address.
    Direct(u64),
    /// A call through a register or a pointer in memory.
    Indirect,
}

/// Decode the call instruction that ends where `code` ends, at `address`. Return None if the code does not
/// end with a call.
///
/// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CALL: E8 cd, FF /2.
pub fn decode(code: &[u8], address: u64) -> Option<Call> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_direct_call_has_its_target() {
        assert_eq!(decode(&[0x90, 0xe8, 0xfb, 0xff, 0xff, 0xff], 0x1005), Some(Call::Direct(0x1000)));
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
            assert_eq!(decode(&code, 0x1000), Some(Call::Indirect), "{call:x?}");
        }
    }

    #[test]
    fn other_instructions_are_not_calls() {
        for code in [&[0x90; 8][..], &[0xff, 0xe0], &[0xff], &[], &[0x0f, 0x05], &[0xff, 0x25, 0, 1, 0, 0]] {
            assert_eq!(decode(code, 0x1000), None, "{code:x?}");
        }
    }
}
