package dev.chagres.jmh.states;

/** The shapes at which layers are measured; names and sizes are those of the published comparison. */
public enum LayerShape {
    /** Small enough for a laptop. */
    CPU(64, 256, 4, 4, 64),
    /** So small that only the host's time counts. */
    TINY(256, 1024, 4, 1, 128),
    /** A layer of ESM-2 650M on 8 sequences of 1,024. */
    ESM650M(1280, 5120, 20, 8, 1024),
    /** A layer as in a language model of 7 billion parameters. */
    SEED4096(4096, 16384, 32, 4, 2048);

    private final long hidden;
    private final long inner;
    private final int heads;
    private final int batch;
    private final int length;

    LayerShape(long hidden, long inner, int heads, int batch, int length) {
        this.hidden = hidden;
        this.inner = inner;
        this.heads = heads;
        this.batch = batch;
        this.length = length;
    }

    /** Returns the columns of the input. */
    public long hidden() {
        return hidden;
    }

    /** Returns the columns inside the MLP. */
    public long inner() {
        return inner;
    }

    /** Returns the heads of attention. */
    public int heads() {
        return heads;
    }

    /** Returns the sequences. */
    public int batch() {
        return batch;
    }

    /** Returns the tokens of a sequence. */
    public int length() {
        return length;
    }

    /** Returns the tokens of all sequences. */
    public int tokens() {
        return batch * length;
    }
}
