package dev.chagres.models.esm;

/**
 * The published sizes of ESM-2, and one that trains on a laptop's CPU in a minute.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: Lin et al., "ESM-2", Science 2023, and the configurations of the released checkpoints.
 */
public enum Esm2Size {
    /** Not published; the default on a CPU. */
    TINY("tiny", 2, 64, 4),
    /** 8 million parameters. */
    M8("8M", 6, 320, 20),
    /** 35 million parameters. */
    M35("35M", 12, 480, 20),
    /** 150 million parameters. */
    M150("150M", 30, 640, 20),
    /** 650 million parameters. */
    M650("650M", 33, 1280, 20),
    /** 3 billion parameters. */
    B3("3B", 36, 2560, 40),
    /** 15 billion parameters. */
    B15("15B", 48, 5120, 40);

    private final String label;
    private final int layers;
    private final int hidden;
    private final int heads;

    Esm2Size(String label, int layers, int hidden, int heads) {
        this.label = label;
        this.layers = layers;
        this.hidden = hidden;
        this.heads = heads;
    }

    /** Returns the name that users give, such as {@code 8M}. */
    public String label() {
        return label;
    }

    /** Returns the number of transformer layers. */
    public int layers() {
        return layers;
    }

    /** Returns the hidden size H. */
    public int hidden() {
        return hidden;
    }

    /** Returns the number of attention heads. */
    public int heads() {
        return heads;
    }

    @Override
    public String toString() {
        return label;
    }
}
