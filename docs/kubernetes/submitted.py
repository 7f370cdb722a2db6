"""What ``spark-submit`` runs in cluster mode: ``weir`` with the arguments that follow."""

from weir.pipelines.cli import main

main()
