"""The kernel of a supervised notebook, and papermill's client made strict.

Where plain papermill is lenient: any failure ends the notebook, a cell that ends the kernel on purpose does not count
as done, and the output that is kept of a cell is bounded.
"""

import re

from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat.v4 import new_output
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines

TEXT_LIMIT = 200_000  # characters of printed text kept of a cell
OUTPUT_COUNT = 1_000  # outputs kept of a cell
CUT = "\n[... cut here: too much output ...]\n"
OVERFULL = new_output("display_data", {"text/plain": CUT})
OVERWRITTEN = re.compile(r"^.*\r(?=[^\r\n])", re.M)  # by what follows a carriage return, as progress bars do


class Kernel(AsyncKernelManager):
    """The kernel of this environment, whatever is or is not registered on the machine."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(resource_dir=RESOURCES, **get_kernel_dict())

    def client(self, **kwargs):
        """The client of this kernel, which loses no message.

        By default a socket drops messages when the kernel is faster than we are, the end of the cell among them.
        """
        client = super().client(**kwargs)
        client.context.rcvhwm = 0
        return client


class Client(PapermillNotebookClient):
    """Executes the cells of a notebook, strictly."""

    exit_code: int | None = None  # of a kernel that died

    def papermill_execute_cells(self):
        """One cell after the other, until one fails."""
        for index, cell in enumerate(self.nb.cells):
            self.nb_man.cell_start(cell, index)
            try:
                self.execute_cell(cell, index)
                for shown in cell.get("outputs", []):
                    if shown.output_type == "error":  # which `%%capture` shows, and answers that all went well
                        raise CellExecutionError("", shown.ename, shown.evalue)
            except Exception:
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
        """Keep an output of a cell, within the bounds."""
        kind, content = msg["msg_type"], msg["content"]
        last = outs[-1] if outs and not self.clear_before_next_output else {}
        if kind == "stream" and last.get("name") == content["name"]:
            last["text"] = bounded(last["text"], content["text"])
        elif last and kind != "error" and len(outs) >= OUTPUT_COUNT:
            outs[OUTPUT_COUNT:] = [OVERFULL]
        else:
            if kind == "stream":
                content["text"] = bounded("", content["text"])
            return super().output(outs, msg, display_id, cell_index)


def bounded(text: str, more: str) -> str:
    """``text + more`` as a terminal shows it, without its middle if it is too long."""
    head, newline, line = text.rpartition("\n")
    text = head + newline + OVERWRITTEN.sub("", line + more)
    half = TEXT_LIMIT // 2
    return text if len(text) <= TEXT_LIMIT + len(CUT) else text[:half] + CUT + text[-half:]


class Engine(NBClientEngine):
    """Lets papermill run its notebook by ``run``, which is given papermill's manager of it."""

    @classmethod
    def execute_managed_notebook(cls, nb_man, kernel_name, *, run, **_):
        run(nb_man)


papermill_engines.register("supervised", Engine)
