#!/usr/bin/env bash
# kubectl and Kubernetes's Python client choose another cluster from the same $KUBECONFIG, and another token of a user.
#
# Of several files, kubectl takes the first current-context, the Python client the last. Of a user with `token` and `tokenFile`,
# client-go sends what the file holds, without its line break; the Python client sends `token`, or the file with its line break.
#
# Versions: kubernetes 37.0.2 (PyPI); k8s.io/client-go v0.36.3, which kubectl 1.36.3 is built with. Needs go and python3.
# Output seen:
#   client-go: https://first.example file's
#   Python:    https://second.example field's; without the field: "file's\n"
set -euo pipefail
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"

printf "file's\n" >token
for name in first second; do
  cat >$name <<YAML
apiVersion: v1
kind: Config
current-context: $name
clusters: [{name: $name, cluster: {server: "https://$name.example"}}]
contexts: [{name: $name, context: {cluster: $name, user: jane}}]
users: [{name: jane, user: {token: "field's", tokenFile: token}}]
YAML
done
sed 's/token: "field.s", //' first >file-only
export KUBECONFIG=$work/first:$work/second

mkdir go
cat >go/main.go <<'GO'
package main

import (
	"fmt"
	"os"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		panic(err)
	}
	sent := config.BearerToken
	if config.BearerTokenFile != "" {
		// As transport.NewCachedFileTokenSource reads it.
		data, err := os.ReadFile(config.BearerTokenFile)
		if err != nil {
			panic(err)
		}
		sent = strings.TrimSpace(string(data))
	}
	fmt.Println("client-go:", config.Host, sent)
}
GO
(cd go && go mod init files && go get k8s.io/client-go@v0.36.3 && go mod tidy) >/dev/null 2>&1
(cd go && go build -o ../show .)
./show >seen

python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check kubernetes==37.0.2
venv/bin/python - >>seen <<'PY'
import json
import os

from kubernetes import client, config

both, alone = client.Configuration(), client.Configuration()
config.load_kube_config(config_file=os.environ["KUBECONFIG"], client_configuration=both)
config.load_kube_config(config_file="file-only", client_configuration=alone)
field, file = (one.api_key["BearerToken"].removeprefix("Bearer ") for one in (both, alone))
print("Python:   ", both.host, f"{field}; without the field: {json.dumps(file)}")
PY

diff - seen <<'EXPECTED'
client-go: https://first.example file's
Python:    https://second.example field's; without the field: "file's\n"
EXPECTED
echo "as described"
