"""How a notebook is executed: papermill, with a kernel of this environment, over sockets in a private folder.

Differs from plain papermill where that is lenient: any failure ends the notebook, a cell that ends the kernel on
purpose does not count as done, and the output that is kept of a cell is bounded.
"""

import os
from pathlib import Path

import papermill
import zmq
from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from nbclient.exceptions import CellTimeoutError
from nbformat.v4 import new_output
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines

TEXT_LIMIT = 200_000  # characters of printed text kept of a cell
OUTPUT_LIMIT = 20_000_000  # characters of all output kept of a cell, images included
OUTPUT_COUNT = 1_000  # outputs kept of a cell
CUT = "\n[... cut here: too much output ...]\n"
OVERFULL = new_output("display_data", {"text/plain": CUT})


class StoppedEarlyError(Exception):
    """A cell ended the kernel on purpose."""


class Kernel(AsyncKernelManager):
    """The kernel of this environment, whatever is or is not registered on the machine."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(resource_dir=RESOURCES, **get_kernel_dict())

    def client(self, **kwargs):
        client = super().client(**kwargs)
        # By default a socket drops messages when the kernel is faster than we are, the end of the cell among them.
        client.context.setsockopt(zmq.RCVHWM, 0)
        return client


class Client(PapermillNotebookClient):
    """Papermill's client, made strict."""

    exit_code: int | None = None  # of a kernel that died
    kept = 0  # characters of output of the current cell

    def papermill_execute_cells(self):
        for index, cell in enumerate(self.nb.cells):
            self.nb_man.cell_start(cell, index)
            try:
                self.execute_cell(cell, index)
            except BaseException:
                self.nb_man.cell_exception(cell, cell_index=index)
                self.shutdown_kernel = "immediate"  # there is nothing to wait for
                raise
            finally:
                self.nb_man.cell_complete(cell, cell_index=index)

    async def _async_check_alive(self):
        self.exit_code = await self.km.provisioner.poll()
        await super()._async_check_alive()

    async def _async_handle_timeout(self, timeout, cell=None):
        # Also for the hang after the last cell, where there is no cell and nbclient would trip over an assertion.
        raise CellTimeoutError.error_from_timeout_and_cell("Timeout", timeout, cell)

    def output(self, outs, msg, display_id, cell_index):
        kind, content = msg["msg_type"], msg["content"]
        if self.clear_before_next_output or not outs:
            self.kept = 0
        elif kind == "stream" and outs[-1].get("name") == content["name"]:
            outs[-1]["text"] = bounded(outs[-1]["text"], content["text"])
            return None
        self.kept += len(str(content))
        if kind != "error" and (len(outs) >= OUTPUT_COUNT or self.kept > OUTPUT_LIMIT):
            if outs[-1:] != [OVERFULL]:
                outs.append(OVERFULL)
            return None
        if kind == "stream":
            content["text"] = bounded("", content["text"])
        return super().output(outs, msg, display_id, cell_index)


def bounded(text: str, more: str) -> str:
    """``text + more`` as a terminal shows it, progress bars overwritten, without its middle if it is too long."""
    head, newline, line = text.rpartition("\n")
    lines = []
    for raw in (line + more).split("\n"):
        kept = raw.rstrip("\r")
        lines.append(kept.rpartition("\r")[2] + raw[len(kept) :][:1])
    text = head + newline + "\n".join(lines)
    half = TEXT_LIMIT // 2
    return text if len(text) <= TEXT_LIMIT + len(CUT) else text[:half] + CUT + text[-half:]


class Engine(NBClientEngine):
    """Papermill's engine with our kernel and client, over sockets in a private folder where the system has them."""

    @classmethod
    def execute_managed_notebook(cls, nb_man, kernel_name, *, name, scratch, environment, keep, options, **_):
        nb_man.nb.metadata.papermill.update(input_path=f"{name}.ipynb", output_path=f"{name}.ipynb")
        sockets = {"transport": "ipc", "ip": f"{scratch}/k"} if os.name == "posix" else {}
        client = Client(nb_man, km=Kernel(connection_file=f"{scratch}/kernel.json", **sockets), **options)
        client.owns_km = True  # so that it shuts the kernel down
        keep(client)
        client.execute(env=environment)


papermill_engines.register("supervised", Engine)


def execute(notebook: Path, parameters: dict, **engine) -> None:
    """Execute a notebook in place: it is rewritten after every cell. Raises whatever went wrong.

    The keywords are those of :class:`Engine`: the notebook's name; scratch, a folder with a short path; environment;
    keep, called with the client, whose notebook holds the outputs even when this raises; options of the client.
    """
    options = {"engine_name": "supervised", "kernel_name": "python3", "language": "python", "progress_bar": False}
    papermill.execute_notebook(str(notebook), str(notebook), parameters=parameters, **options, **engine)
