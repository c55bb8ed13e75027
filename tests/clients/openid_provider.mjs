// An OpenID Connect provider without a password: every sign-in is that of the account in use. Arguments: the redirect
// address of its client, and "token" or "user-info", where it gives the claims of scopes. Prints its address;
// POST /account/NAME changes the account, DELETE /account makes it refuse.

import { createServer } from "node:http";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const tools = createRequire(process.execPath);
const { default: Provider } = await import(pathToFileURL(tools.resolve("oidc-provider")));

const server = createServer();
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const issuer = `http://127.0.0.1:${server.address().port}`;
let account = "alice";

const provider = new Provider(issuer, {
  clients: [{ client_id: "sandbox", client_secret: "a-secret-of-the-client", redirect_uris: [process.argv[2]] }],
  claims: { openid: ["sub"], email: ["email", "email_verified"] },
  conformIdTokenClaims: process.argv[3] !== "token",
  cookies: { keys: ["a-key-of-the-test"] },
  features: { devInteractions: { enabled: false } },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, email: `${id}@example.org`, email_verified: !id.startsWith("unverified") }),
  }),
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  pkce: { required: () => true },
});

async function interact(request, response) {
  const { prompt, params } = await provider.interactionDetails(request, response);
  let result = { error: "access_denied" };
  if (account && prompt.name === "login") result = { login: { accountId: account, remember: false } };
  if (account && prompt.name === "consent") {
    const grant = new provider.Grant({ accountId: account, clientId: params.client_id });
    grant.addOIDCScope(params.scope);
    result = { consent: { grantId: await grant.save() } };
  }
  await provider.interactionFinished(request, response, result, { mergeWithLastSubmission: true });
}

const handle = provider.callback();
server.on("request", (request, response) => {
  if (request.url.startsWith("/account")) {
    account = request.method === "POST" ? request.url.slice("/account/".length) : undefined;
    response.end();
  } else if (request.url.startsWith("/interaction/")) {
    interact(request, response).catch((error) => response.writeHead(500).end(String(error)));
  } else {
    handle(request, response);
  }
});
console.log(issuer);
