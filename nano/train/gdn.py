"""The gated delta rule in three forms: recurrent (the definition), chunked (training) and one step (decoding).

The chunked form is made of plain matrix products, so autograd and the compiler do the rest. It runs in float32 (TF32 on a GPU):
bf16 costs 1-8 % of the gate gradients. Shapes: q, k [B,T,H,K], v [B,T,H,V], g log decay and b (beta) [B,T,H]; q and k are
l2-normalised and already repeated to the value heads. S is the state [B,H,K,V].
"""
import torch

CHUNK = 64
SEGMENT = 1024          # tokens of one compiled call; longer sequences loop over segments and hand the state on


def recurrent(q, k, v, g, b):
    state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[-1])
    out = []
    for t in range(q.shape[1]):
        o, state = step(q[:, t], k[:, t], v[:, t], g[:, t], b[:, t], state)
        out.append(o)
    return torch.stack(out, 1)


def step(q, k, v, g, b, state):
    """One token: q, k [B,H,K], v [B,H,V], g, b [B,H]. Returns output [B,H,V] and the new state."""
    state = state * g.exp()[..., None, None]
    d = (v - torch.einsum("bhk,bhkv->bhv", k, state)) * b[..., None]
    state = state + k[..., :, None] * d[..., None, :]
    return torch.einsum("bhk,bhkv->bhv", q, state) * q.shape[-1] ** -0.5, state


def triangular_inverse(a):
    """(I + a)^-1 for strictly lower triangular a [..,64,64]: 16-blocks by a Neumann product, then merged in pairs."""
    c, w = a.shape[-1], 16
    n = c // w
    d = a.unflatten(-2, (n, w)).unflatten(-1, (n, w))
    x = torch.stack([d[..., i, :, i, :] for i in range(n)], -3)
    eye = torch.eye(w, device=a.device, dtype=a.dtype)
    m = -x
    r = eye + m
    for _ in range(3):
        m = m @ m
        r = r @ (eye + m)
    blocks = [r[..., i, :, :] for i in range(n)]
    while w < c:
        merged = []
        for i in range(0, len(blocks), 2):
            p, q = blocks[i], blocks[i + 1]
            low = -(q @ (a[..., (i + 1) * w:(i + 2) * w, i * w:(i + 1) * w] @ p))
            merged.append(torch.cat([torch.cat([p, torch.zeros_like(low)], -1), torch.cat([low, q], -1)], -2))
        blocks, w = merged, w * 2
    return blocks[0]


def chunked(q, k, v, g, b, state):
    """T must be a multiple of CHUNK. Returns (o [B,T,H,V], new state)."""
    B, T, H, K = q.shape
    V, N = v.shape[-1], T // CHUNK
    split = lambda x: x.transpose(1, 2).reshape(B, H, N, CHUNK, -1)
    q, k, v = split(q), split(k), split(v)
    b = b.transpose(1, 2).reshape(B, H, N, CHUNK, 1)
    G = g.transpose(1, 2).reshape(B, H, N, CHUNK).cumsum(-1)
    low = torch.ones(CHUNK, CHUNK, device=q.device, dtype=torch.bool).tril()
    decay = (G[..., :, None] - G[..., None, :]).masked_fill(~low, float("-inf")).exp()
    kb = k * b
    inv = triangular_inverse(((kb @ k.mT) * decay).tril(-1))
    u = inv @ (v * b)
    w = inv @ (kb * G[..., None].exp())
    att = (q @ k.mT) * decay
    qd = q * G[..., None].exp()
    kd = k * (G[..., -1:] - G)[..., None].exp()
    cd = G[..., -1].exp()[..., None, None]
    out = []
    for i in range(N):
        vn = u[:, :, i] - w[:, :, i] @ state
        out.append(qd[:, :, i] @ state + att[:, :, i] @ vn)
        state = state * cd[:, :, i] + kd[:, :, i].mT @ vn
    return (torch.stack(out, 2).reshape(B, H, T, V) * K ** -0.5).transpose(1, 2), state


def _self_test():
    torch.manual_seed(0)
    import torch.nn.functional as F
    B, T, H, D = 2, 256, 2, 32
    n = lambda: F.normalize(torch.randn(B, T, H, D) + .5, dim=-1)
    args = [n(), n(), torch.randn(B, T, H, D), -F.softplus(torch.randn(B, T, H)) * .3, torch.rand(B, T, H)]
    args[3][:, 100] -= 60                                    # a document start wipes the state

    def grads(f):
        ts = [t.clone().requires_grad_() for t in args]
        o = f(*ts)
        (o * torch.linspace(-1, 1, o.numel()).view_as(o)).sum().backward()
        return [o.detach()] + [t.grad for t in ts]

    zero = torch.zeros(B, H, D, D)
    for x, y in zip(grads(recurrent), grads(lambda *t: chunked(*t, zero)[0])):
        err = float((x - y).norm() / x.norm())
        assert err < 1e-4, err
    print("gated delta rule: chunked equals recurrent, values and gradients")


if __name__ == "__main__":
    _self_test()
