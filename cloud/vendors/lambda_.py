"""Lambda Cloud."""

from __future__ import annotations

from cloud.vendors.record import CredentialFile, FocusNames, Vendor

LAMBDA = Vendor(
    name="lambda",
    title="Lambda",
    focus=FocusNames("Lambda", "On-demand cloud"),
    bill_words=("lambda",),
    rents_vms=True,
    rents_spot=False,
    credential_files=(CredentialFile(".lambda_cloud/lambda_keys", ("api_key",)),),
    sign_in="write `api_key = YOUR_KEY` into ~/.lambda_cloud/lambda_keys (mode 600)",
    api_url="https://cloud.lambda.ai/",
    cpu_instances=r"cpu_",
    instance_names={"A10": "gpu_1x_a10"},
)
