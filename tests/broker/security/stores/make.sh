#!/bin/sh
# Makes the stores beside it with openssl and Java's keytool (17 or newer): `sh make.sh`, in this folder.
set -eu
rm -f *.jks *.p12 *.crt *.key
days=36500

authority() { # NAME ISSUER
  openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt -out "$1.key"
  if [ "$1" = "$2" ]; then
    openssl req -x509 -new -key "$1.key" -subj "/CN=$1" -days $days -out "$1.crt"
  else
    openssl req -new -key "$1.key" -subj "/CN=$1" |
      openssl x509 -req -CA "$2.crt" -CAkey "$2.key" -CAcreateserial -days $days -extfile "$3" -out "$1.crt"
  fi
}

printf 'basicConstraints=CA:TRUE\n' > between.ext
printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\n' > node.ext
authority root root
authority between root between.ext
authority node between node.ext
authority other root node.ext
cat node.crt between.crt root.crt > chain.pem
openssl pkcs12 -export -inkey node.key -in chain.pem -name node -passout pass:of-the-store -out from-openssl.p12
openssl pkcs12 -export -inkey other.key -in other.crt -name other -passout pass:of-the-store -out other.p12

import() { # OPTION... : of from-openssl.p12
  keytool "$@" -noprompt -srckeystore from-openssl.p12 -srcstorepass of-the-store -srcalias node 2> /dev/null
}
import -importkeystore -destkeystore node.p12 -deststoretype PKCS12 -deststorepass of-the-store
import -J-Dkeystore.pkcs12.legacy -importkeystore -destkeystore old.p12 -deststoretype PKCS12 -deststorepass of-the-store
import -importkeystore -destkeystore node.jks -deststoretype JKS -deststorepass of-the-store -destkeypass of-the-key
import -importkeystore -destkeystore many.jks -deststoretype JKS -deststorepass of-the-store -destkeypass of-the-store
keytool -importkeystore -noprompt -srckeystore other.p12 -srcstorepass of-the-store -destkeystore many.jks \
  -deststoretype JKS -deststorepass of-the-store 2> /dev/null
import -importkeystore -destkeystore node.jceks -deststoretype JCEKS -deststorepass of-the-store -destkeypass of-the-store

trust() { # STORE TYPE OPTION...
  store=$1 type=$2
  shift 2
  for each in root other; do
    keytool "$@" -importcert -noprompt -alias $each -file $each.crt -keystore "$store" -storetype "$type" \
      -storepass of-the-store 2> /dev/null
  done
}
trust trust.jks JKS
trust trust.p12 PKCS12
trust open.p12 PKCS12 -J-Dkeystore.pkcs12.certProtectionAlgorithm=NONE -J-Dkeystore.pkcs12.macAlgorithm=NONE
# As people do who keep everything in one: what they believe beside what they are.
cp node.jks both.jks
trust both.jks JKS
rm -f *.ext *.srl chain.pem other.p12 other.key root.key between.key
