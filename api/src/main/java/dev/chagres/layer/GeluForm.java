package dev.chagres.layer;

/** How GELU is computed; the two forms differ by less than 1e-3. */
public enum GeluForm {
    /** {@code x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))}: Transformer Engine's, which products compute in their epilogue. */
    TANH,
    /** {@code x / 2 (1 + erf(x / sqrt(2)))}: exact, of transformers and PyTorch by default; always a kernel of its own. */
    ERF
}
