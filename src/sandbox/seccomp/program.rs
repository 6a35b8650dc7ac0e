//! Rules of the filter, and their compilation to a BPF program.

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W,
    SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_PROCESS, c_long, sock_filter,
};

/// `AUDIT_ARCH_*` of `linux/audit.h`.
#[cfg(target_arch = "x86_64")]
pub(super) const ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
pub(super) const ARCH: u32 = 0xC000_00B7;
#[cfg(target_arch = "arm")]
pub(super) const ARCH: u32 = 0x4000_0028;
#[cfg(target_arch = "riscv64")]
pub(super) const ARCH: u32 = 0xC000_00F3;

/// A rejected system call.
pub(super) struct Rule {
    pub call: c_long,
    /// Conditions that must all be true.
    pub conditions: Vec<Condition>,
    pub errno: i32,
}

/// Compares half of an argument, under a mask, with a value.
#[derive(Clone, Copy)]
pub(super) struct Condition {
    /// Offset in `struct seccomp_data`.
    pub offset: u32,
    pub mask: u32,
    pub value: u32,
    pub is_equal: bool,
}

/// Converts a constant that is signed in C; the filter compares unsigned values.
pub(super) const fn bits(n: libc::c_int) -> u32 {
    u32::from_ne_bytes(n.to_ne_bytes())
}

/// Offset of an argument's low half. All supported architectures are little-endian.
pub(super) const fn low_half(argument: u32) -> u32 {
    16 + 8 * argument
}

pub(super) fn is(argument: u32, mask: u32, value: u32) -> Condition {
    Condition {
        offset: low_half(argument),
        mask,
        value,
        is_equal: true,
    }
}

pub(super) fn is_not(argument: u32, mask: u32, value: u32) -> Condition {
    Condition {
        is_equal: false,
        ..is(argument, mask, value)
    }
}

pub(super) fn has_any(argument: u32, bits: u32) -> Condition {
    is_not(argument, bits, 0)
}

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

fn statement(code: u32, k: u32) -> sock_filter {
    jump(code, k, 0, 0)
}

/// Opcodes of classic BPF have 16 bits by definition.
fn jump(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter {
        code: u16::try_from(code).unwrap_or_default(),
        jt,
        jf,
        k,
    }
}

fn load(offset: u32) -> sock_filter {
    statement(BPF_LD | BPF_W | BPF_ABS, offset)
}

fn refusal(errno: i32) -> sock_filter {
    statement(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | bits(errno))
}

/// Compiles the rules, then the list of allowed calls. Each rule becomes a block that rejects the call or continues with the
/// next. Without a list, all other calls are allowed.
pub(super) fn program(rules: &[Rule], allowed: Option<&mut Vec<c_long>>) -> Vec<sock_filter> {
    let mut out = vec![
        load(ARCHITECTURE),
        jump(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
        statement(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        load(NUMBER),
    ];
    for rule in rules {
        let block = block(rule);
        let skip = u8::try_from(block.len()).unwrap_or(u8::MAX);
        out.push(jump(BPF_JMP | BPF_JEQ | BPF_K, number(rule.call), 0, skip));
        out.extend(block);
    }
    let allow = statement(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    let Some(allowed) = allowed else {
        out.push(allow);
        return out;
    };
    allowed.sort_unstable();
    // Compares with ranges of numbers, so that most calls take few steps. The x32 calls, whose architecture is x86-64, have
    // higher numbers than all ranges.
    for range in allowed.chunk_by(|call, next| *next <= call + 1) {
        let (first, last) = (number(range[0]), number(range[range.len() - 1]));
        out.extend([
            jump(BPF_JMP | BPF_JGE | BPF_K, first, 1, 0),
            refusal(libc::ENOSYS),
        ]);
        out.extend([jump(BPF_JMP | BPF_JGT | BPF_K, last, 1, 0), allow]);
    }
    out.push(refusal(libc::ENOSYS));
    out
}

fn number(call: c_long) -> u32 {
    u32::try_from(call).unwrap_or(u32::MAX)
}

/// Compiles the block that runs if the number of the call matches.
fn block(rule: &Rule) -> Vec<sock_filter> {
    let mut block = Vec::new();
    for (n, condition) in rule.conditions.iter().enumerate() {
        // Skips the remaining conditions and the rejection.
        let remaining = rule.conditions.len() - n - 1;
        let skip = u8::try_from(3 * remaining + 1).unwrap_or(u8::MAX);
        let (jt, jf) = if condition.is_equal {
            (0, skip)
        } else {
            (skip, 0)
        };
        block.push(load(condition.offset));
        block.push(statement(BPF_ALU | BPF_AND | BPF_K, condition.mask));
        block.push(jump(BPF_JMP | BPF_JEQ | BPF_K, condition.value, jt, jf));
    }
    block.push(refusal(rule.errno));
    if !rule.conditions.is_empty() {
        // The next rule expects the number to be loaded.
        block.push(load(NUMBER));
    }
    block
}
