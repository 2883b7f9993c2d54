package dev.chagres.witness;

/**
 * What dropout of our own attention keeps, from its formula: weight (b, h, i, j) is kept when word j % 4 of Philox4x32-10 times
 * 2^-32 is at least the probability. Key: the seed, its high word xored with that of the offset; counter: j / 4, low word of
 * the offset, i, b heads + h.
 *
 * @param probability of dropping a weight
 * @param heads of every sequence
 * @param seed of the generator
 * @param offset of the generator at the call
 */
public record AttentionDropoutWitness(float probability, int heads, long seed, long offset)
        implements AttentionWitness.Keep {
    @Override
    public double factor(int sequence, int head, int query, int key) {
        int[] counter = {key / 4, (int) offset, query, sequence * heads + head};
        int word = PhiloxWitness.draw(counter, (int) seed, (int) (seed >>> 32) ^ (int) (offset >>> 32))[key % 4];
        return Integer.toUnsignedLong(word) * 0x1p-32 >= probability ? 1 / (1 - (double) probability) : 0;
    }
}
