"""Layer: sources. The seed corpus: short coding sessions of a scripted policy in the real pi.

``seed_folder()`` gives the shipped session files. How they came about: ``generate`` draws scenarios
from the families in ``repair``, ``build``, ``extend``, ``qa`` and ``refused``; the work module
``agentkit.record_corpus`` lets the real pi play them. What a trace of each kind shows stands in
the docstrings of these modules and in ``agentkit/data/seed_trajectories/README.md``.
"""

from agentkit.corpus.archive import seed_folder

__all__ = ["seed_folder"]
