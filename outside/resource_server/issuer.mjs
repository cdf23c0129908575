// oidc-provider as the issuer of access tokens for a gateway: resource indicators, JWT, opaque tokens, DPoP, introspection.
// node issuer.mjs PORT KEY_NAME
import { generateKeyPairSync } from 'node:crypto';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const require = createRequire(`${process.env.NODE_PACKAGES}/`);
const { Provider } = await import(pathToFileURL(require.resolve('oidc-provider')).href);
const [port, name] = process.argv.slice(2);
const make = (kind, options) => generateKeyPairSync(kind, options).privateKey.export({ format: 'jwk' });
const scope = 'indus:list indus:call indus:call:echo indus:call:other indus:admin';

const provider = new Provider(`http://127.0.0.1:${port}`, {
  jwks: {
    keys: [
      { ...make('ec', { namedCurve: 'P-256' }), kid: `${name}-ec`, alg: 'ES256', use: 'sig' },
      { ...make('rsa', { modulusLength: 2048 }), kid: `${name}-rsa`, alg: 'RS256', use: 'sig' },
    ],
  },
  clients: ['alice', 'bob', 'gateway'].map((id) => ({
    client_id: id,
    client_secret: `secret-of-${id}`,
    grant_types: ['client_credentials'],
    redirect_uris: [],
    response_types: [],
    token_endpoint_auth_method: 'client_secret_basic',
  })),
  scopes: scope.split(' '),
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    introspection: { enabled: true },
    revocation: { enabled: true },
    dPoP: { enabled: true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (ctx, resource) => ({
        scope,
        audience: resource.replace(/\/(rsa|opaque)$/, ''),
        accessTokenTTL: 600,
        ...(resource.endsWith('/opaque')
          ? { accessTokenFormat: 'opaque' }
          : { accessTokenFormat: 'jwt', jwt: { sign: { alg: resource.endsWith('/rsa') ? 'RS256' : 'ES256' } } }),
      }),
    },
  },
});
provider.listen(Number(port), '127.0.0.1', () => console.log('ready'));
