// oidc-provider as the authorization server of one MCP server: registration, PKCE, device flow, resource indicators.
// node issuer.mjs PORT RESOURCE [SCOPES]
import { generateKeyPairSync } from 'node:crypto';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const require = createRequire(`${process.env.NODE_PACKAGES}/`);
const { Provider } = await import(pathToFileURL(require.resolve('oidc-provider')).href);
const [port, resource, scopes = 'read'] = process.argv.slice(2);
const key = generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey.export({ format: 'jwk' });

const provider = new Provider(`http://127.0.0.1:${port}`, {
  jwks: { keys: [{ ...key, kid: 'k1', alg: 'ES256', use: 'sig' }] },
  scopes: ['openid', 'offline_access', ...scopes.split(' ')],
  pkce: { required: () => true },
  issueRefreshToken: async (ctx, client) => client.grantTypeAllowed('refresh_token'),
  rotateRefreshToken: true,
  clientDefaults: { id_token_signed_response_alg: 'ES256' },
  enabledJWA: { idTokenSigningAlgValues: ['ES256'] },
  features: {
    registration: { enabled: true },
    deviceFlow: { enabled: true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => resource,
      useGrantedResource: () => true,
      getResourceServerInfo: () => ({
        scope: scopes,
        audience: resource,
        accessTokenTTL: 3600,
        accessTokenFormat: 'jwt',
        jwt: { sign: { alg: 'ES256' } },
      }),
    },
  },
});
let refreshes = 0;
provider.on('grant.success', (ctx) => {
  if (ctx.oidc.params.grant_type === 'refresh_token') refreshes += 1;
});
provider.listen(Number(port), '127.0.0.1', () => console.log('ready'));
