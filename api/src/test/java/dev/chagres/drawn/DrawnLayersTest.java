package dev.chagres.drawn;

import dev.chagres.DType;
import dev.chagres.conformance.OpenDevice;
import net.jqwik.api.Arbitrary;
import net.jqwik.api.EdgeCasesMode;
import net.jqwik.api.ForAll;
import net.jqwik.api.Property;
import net.jqwik.api.Provide;
import net.jqwik.api.lifecycle.AfterContainer;
import net.jqwik.api.lifecycle.BeforeContainer;

/**
 * Forward and every gradient of drawn layers against double precision. A failure prints the layer that was drawn and the plainest
 * that fails like it. {@link DrawnOption} lists the options that layers are drawn with.
 */
class DrawnLayersTest {
    private static final String SEED = "2026";
    private static final OpenDevice open = new OpenDevice();
    private static final OptionCounts counts = new OptionCounts();
    /** Layers of the properties below, together. */
    private static final int ALL = 1200 + 800 + 800 + 250 + 200 + 250 + 250;
    /** Times that each option is drawn at least. */
    private static final int LEAST = 5;

    @BeforeContainer
    static void openDevice() {
        open.open();
    }

    @AfterContainer
    static void closeDevice() {
        open.close();
        System.out.print(counts);
        if (counts.layers() >= ALL) { // not where one of the properties runs by itself, or has failed
            counts.require(LEAST);
        }
    }

    @Provide
    static Arbitrary<DrawnLayer> inFloat32() {
        return DrawnLayers.of(DType.FLOAT32);
    }

    @Provide
    static Arbitrary<DrawnLayer> inBfloat16() {
        return DrawnLayers.of(DType.BFLOAT16);
    }

    @Provide
    static Arbitrary<DrawnLayer> inFloat16() {
        return DrawnLayers.of(DType.FLOAT16);
    }

    @Provide
    static Arbitrary<DrawnLayer> withDelayedScaling() {
        return DrawnLayers.of(DrawnRecipe.delayed());
    }

    @Provide
    static Arbitrary<DrawnLayer> withDelayedScalingOfAttention() {
        return DrawnLayers.of(DrawnRecipe.delayedWithAttention());
    }

    @Provide
    static Arbitrary<DrawnLayer> withCurrentScaling() {
        return DrawnLayers.of(DrawnRecipe.current());
    }

    @Provide
    static Arbitrary<DrawnLayer> withBlockScaling() {
        return DrawnLayers.of(DrawnRecipe.block());
    }

    @Property(tries = 1200, seed = SEED, edgeCases = EdgeCasesMode.NONE)
    void float32(@ForAll("inFloat32") DrawnLayer layer) {
        check(layer);
    }

    @Property(tries = 800, seed = SEED, edgeCases = EdgeCasesMode.NONE)
    void bfloat16(@ForAll("inBfloat16") DrawnLayer layer) {
        check(layer);
    }

    @Property(tries = 800, seed = SEED, edgeCases = EdgeCasesMode.NONE)
    void float16(@ForAll("inFloat16") DrawnLayer layer) {
        check(layer);
    }

    @Property(tries = 250, seed = SEED, edgeCases = EdgeCasesMode.NONE)
    void delayedScaling(@ForAll("withDelayedScaling") DrawnLayer layer) {
        check(layer);
    }

    @Property(tries = 200, seed = SEED, edgeCases = EdgeCasesMode.NONE)
    void delayedScalingOfAttention(@ForAll("withDelayedScalingOfAttention") DrawnLayer layer) {
        check(layer);
    }

    @Property(tries = 250, seed = SEED, edgeCases = EdgeCasesMode.NONE)
    void currentScaling(@ForAll("withCurrentScaling") DrawnLayer layer) {
        check(layer);
    }

    @Property(tries = 250, seed = SEED, edgeCases = EdgeCasesMode.NONE)
    void blockScaling(@ForAll("withBlockScaling") DrawnLayer layer) {
        check(layer);
    }

    private static void check(DrawnLayer drawn) {
        open.begin(drawn.seed());
        try {
            counts.add(drawn, LayerRun.compare(drawn, open));
        } finally {
            open.end();
        }
    }
}
