// Frames of arm64, for tests/unwind_aarch64.rs. aarch64.elf is made from this file:
//   zig cc -target aarch64-linux-gnu -nostdlib -shared -Wl,-s -Wl,-z,max-page-size=4096 -o aarch64.elf aarch64.s
    .text
root:                           // +0: the start function of a thread
    .cfi_startproc
    .cfi_undefined x30
    bl      signed
    nop
    .cfi_endproc
signed:                         // +8: signs its return address
    .cfi_startproc
    paciasp
    .cfi_negate_ra_state
    stp     x29, x30, [sp, #-32]!
    .cfi_def_cfa_offset 32
    .cfi_offset x29, -32
    .cfi_offset x30, -24
    mov     x29, sp
    bl      by_pointer
    ldp     x29, x30, [sp], #32 // +24
    .cfi_restore x30
    .cfi_restore x29
    .cfi_def_cfa_offset 0
    autiasp
    .cfi_negate_ra_state
    ret
    .cfi_endproc
by_pointer:                     // +36: finds its caller by the frame pointer
    .cfi_startproc
    stp     x29, x30, [sp, #-16]!
    mov     x29, sp
    .cfi_def_cfa x29, 16
    .cfi_offset x29, -16
    .cfi_offset x30, -8
    mov     x0, x1
    blr     x2
    nop                         // +52
    .cfi_endproc
leaf:                           // +56: leaves its return address in x30
    .cfi_startproc
    nop
    ret
    .cfi_endproc
    nop
restore:                        // +68: the vDSO's __kernel_rt_sigreturn, without unwind information
    mov     x8, #139
    svc     #0
other_root:                     // +76
    .cfi_startproc
    .cfi_undefined x30
    bl      direct
    nop                         // +80
    .cfi_endproc
direct:                         // +84: the only direct caller of `leaf`
    .cfi_startproc
    stp     x29, x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset x29, -16
    .cfi_offset x30, -8
    mov     x29, sp
    bl      leaf
    ldp     x29, x30, [sp], #16 // +96
    .cfi_restore x30
    .cfi_restore x29
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc
