package dev.chagres.drawn;

import dev.chagres.DType;
import dev.chagres.conformance.OpenDevice;
import java.util.List;
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
    private static final int ALL = 400 + 270 + 270 + 85 + 70 + 85 + 85;
    /** So many times as many, other ones too, are drawn by night. */
    private static final int TIMES = Integer.getInteger("chagres.test.layers", 1);
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
    static Arbitrary<List<DrawnLayer>> inFloat32() {
        return DrawnLayers.of(DType.FLOAT32).list().ofSize(TIMES);
    }

    @Provide
    static Arbitrary<List<DrawnLayer>> inBfloat16() {
        return DrawnLayers.of(DType.BFLOAT16).list().ofSize(TIMES);
    }

    @Provide
    static Arbitrary<List<DrawnLayer>> inFloat16() {
        return DrawnLayers.of(DType.FLOAT16).list().ofSize(TIMES);
    }

    @Provide
    static Arbitrary<List<DrawnLayer>> withDelayedScaling() {
        return DrawnLayers.of(DrawnRecipe.delayed()).list().ofSize(TIMES);
    }

    @Provide
    static Arbitrary<List<DrawnLayer>> withDelayedScalingOfAttention() {
        return DrawnLayers.of(DrawnRecipe.delayedWithAttention()).list().ofSize(TIMES);
    }

    @Provide
    static Arbitrary<List<DrawnLayer>> withCurrentScaling() {
        return DrawnLayers.of(DrawnRecipe.current()).list().ofSize(TIMES);
    }

    @Provide
    static Arbitrary<List<DrawnLayer>> withBlockScaling() {
        return DrawnLayers.of(DrawnRecipe.block()).list().ofSize(TIMES);
    }

    @Property(tries = 400, seed = SEED, edgeCases = EdgeCasesMode.NONE)
    void float32(@ForAll("inFloat32") List<DrawnLayer> layers) {
        layers.forEach(DrawnLayersTest::check);
    }

    @Property(tries = 270, seed = SEED, edgeCases = EdgeCasesMode.NONE)
    void bfloat16(@ForAll("inBfloat16") List<DrawnLayer> layers) {
        layers.forEach(DrawnLayersTest::check);
    }

    @Property(tries = 270, seed = SEED, edgeCases = EdgeCasesMode.NONE)
    void float16(@ForAll("inFloat16") List<DrawnLayer> layers) {
        layers.forEach(DrawnLayersTest::check);
    }

    @Property(tries = 85, seed = SEED, edgeCases = EdgeCasesMode.NONE)
    void delayedScaling(@ForAll("withDelayedScaling") List<DrawnLayer> layers) {
        layers.forEach(DrawnLayersTest::check);
    }

    @Property(tries = 70, seed = SEED, edgeCases = EdgeCasesMode.NONE)
    void delayedScalingOfAttention(@ForAll("withDelayedScalingOfAttention") List<DrawnLayer> layers) {
        layers.forEach(DrawnLayersTest::check);
    }

    @Property(tries = 85, seed = SEED, edgeCases = EdgeCasesMode.NONE)
    void currentScaling(@ForAll("withCurrentScaling") List<DrawnLayer> layers) {
        layers.forEach(DrawnLayersTest::check);
    }

    @Property(tries = 85, seed = SEED, edgeCases = EdgeCasesMode.NONE)
    void blockScaling(@ForAll("withBlockScaling") List<DrawnLayer> layers) {
        layers.forEach(DrawnLayersTest::check);
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
