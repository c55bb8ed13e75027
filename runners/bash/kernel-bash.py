"""The Bash kernel of sessions: bash_kernel, without the pause that pexpect makes before it sends a line. The pause is
for programs that ask for a password; here it would take 100 ms of every cell."""

import pexpect


class _Spawn(pexpect.spawn):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.delaybeforesend = None


pexpect.spawn = _Spawn

from bash_kernel.kernel import BashKernel  # noqa: E402  # it takes the class from pexpect
from ipykernel.kernelapp import IPKernelApp  # noqa: E402

IPKernelApp.launch_instance(kernel_class=BashKernel)
