"""Run Innoscope on other kernels: stock Debian kernels in a virtual machine, with real servers.

QEMU emulates the CPU (TCG), because the machines on which the tests run may lack KVM. The emulated CPU is 10
to 30 times slower than the host's, so no test checks how long an operation takes.
"""
