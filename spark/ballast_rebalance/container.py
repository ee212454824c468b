"""Entry point of the image for Spark: `driver ARGUMENTS`, `executor` and `spark-submit ARGUMENTS`.

The names and the environment are those that Spark's Kubernetes backend gives to the entry point of any image. The
program replaces this process, so that signals and exit codes are its own. Needs only the standard library.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ballast_rebalance.java_home import find_java_home

PARTS = ("driver", "executor", "spark-submit")
# The image's folders of packages; Spark's settings may have named only some of them.
FOLDERS = ("operator", "spark", "packages")
BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
JAVA_OPTION = "SPARK_JAVA_OPT_"
# The backend's arguments, and the environment variables with their values.
EXECUTOR_ARGUMENTS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


def environment(found: Mapping[str, str], root: Path) -> dict[str, str]:
    """The environment completed with Spark, its Java and all of the image's packages, whatever Spark has set."""
    paths = [path for path in found.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths += [str(root / name) for name in FOLDERS if str(root / name) not in paths and (root / name).is_dir()]
    return {
        **found,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYSPARK_PYTHON": found.get("PYSPARK_PYTHON", sys.executable),
        "SPARK_HOME": found.get("SPARK_HOME") or str(spark_home(paths)),
        "JAVA_HOME": str(find_java_home(found)),
    }


def spark_home(paths: list[str]) -> Path:
    """Where pip put Spark."""
    sys.path += [path for path in paths if path not in sys.path]
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SystemExit("pyspark is not installed in this image")
    return Path(spec.origin).parent


def command(part: str, arguments: list[str], variables: Mapping[str, str]) -> list[str]:
    submit = f"{variables['SPARK_HOME']}/bin/spark-submit"
    if part == "executor":
        return executor_command(variables)
    if part == "driver":
        address = variables["SPARK_DRIVER_BIND_ADDRESS"]
        return [submit, "--conf", f"spark.driver.bindAddress={address}", "--deploy-mode", "client", *arguments]
    return [submit, *arguments]


def executor_command(variables: Mapping[str, str]) -> list[str]:
    numbers = (int(name.removeprefix(JAVA_OPTION)) for name in variables if name.startswith(JAVA_OPTION))
    options = [variables[f"{JAVA_OPTION}{number}"] for number in sorted(numbers)]
    memory = variables["SPARK_EXECUTOR_MEMORY"]
    places = [variables.get("SPARK_CONF_DIR", ""), f"{variables['SPARK_HOME']}/jars/*"]
    java = [f"{variables['JAVA_HOME']}/bin/java", *options, f"-Xms{memory}", f"-Xmx{memory}"]
    java += ["-cp", os.pathsep.join(filter(None, places)), BACKEND]
    return java + [word for name, variable in EXECUTOR_ARGUMENTS.items() for word in (name, variables[variable])]


def main() -> None:
    part, arguments = sys.argv[1], sys.argv[2:]
    if part not in PARTS:
        raise SystemExit(f"{part!r} is none of {', '.join(PARTS)}")
    variables = environment(os.environ, Path(__file__).resolve().parents[2])
    started = command(part, arguments, variables)
    os.execve(started[0], started, variables)


if __name__ == "__main__":
    main()
