package dev.chagres.models;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.estimate.FlopCount;
import dev.chagres.estimate.FlopCount.Flops;
import dev.chagres.estimate.Lengths;
import dev.chagres.models.decoder.Decoder;
import dev.chagres.models.decoder.DecoderArchitecture;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.decoder.DecoderForm;
import dev.chagres.models.decoder.DecoderSizes;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Classifier;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.pass.Pass;
import dev.chagres.pass.PassProfile;
import java.util.Arrays;
import java.util.Locale;
import java.util.function.Consumer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** The operations that are counted, against the products of each model written down one by one, and pairs of tokens counted one by one. */
class FlopCountTest {
    private static final int[] LENGTHS = {20, 7, 5};
    private static final long TOKENS = 32;
    private static final int HIDDEN = 32;
    private static final int INNER = 128;
    private static final int LAYERS = 3;

    private Device device;
    private Pass pass;

    @BeforeEach
    void open() {
        device = Device.open();
        pass = Pass.training(device);
    }

    @AfterEach
    void close() {
        device.close();
    }

    private FlopCount counted(Consumer<Tensor> step) {
        try (FlopCount count =
                FlopCount.of(Lengths.of(Arrays.stream(LENGTHS).asLongStream().toArray()), pass)) {
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), LENGTHS));
            Tensor ids = pass.scope().tensor(DType.INT32, TOKENS);
            ids.set(device.stream(), new int[(int) TOKENS]);
            step.accept(ids);
            return count;
        }
    }

    /** Of all pairs of tokens of a sequence those that lie within a window. */
    private static double pairs(int left, int right) {
        double pairs = 0;
        for (int length : LENGTHS) {
            for (int query = 0; query < length; query++) {
                for (int key = 0; key < length; key++) {
                    boolean near = (left < 0 || query - key <= left) && (right < 0 || key - query <= right);
                    pairs += near ? 1 : 0;
                }
            }
        }
        return pairs;
    }

    private static double product(long outputs, long inputs) {
        return 2.0 * TOKENS * outputs * inputs;
    }

    @Test
    void ofEsm2() {
        double layer = product(3 * HIDDEN, HIDDEN) + product(HIDDEN, HIDDEN) + 2 * product(INNER, HIDDEN);
        double head = product(HIDDEN, HIDDEN) + product(64, HIDDEN);
        double attention = 4 * HIDDEN * pairs(-1, -1);
        double forward = LAYERS * (layer + attention) + head;
        double scores = LAYERS * 2 * HIDDEN * pairs(-1, -1);
        for (Recomputation recomputation : Recomputation.values()) {
            double again = recomputation == Recomputation.LAYERS ? LAYERS * (layer + attention) : 0;
            var config = new Esm2Config(LAYERS, HIDDEN, 2, 32).withRecomputation(recomputation);
            try (Esm2 model = new Esm2(device, config, DType.FLOAT32, 1)) {
                FlopCount count = counted(ids -> {
                    model.loss(ids, ids, pass);
                    model.backward(1, pass);
                });
                assertEquals(new Flops(forward, 2 * forward, scores + again), count.flops(), recomputation.toString());
                assertEquals(count.flops().model(), config.flops(TOKENS, (long) pairs(-1, -1)), 1);
                assertEquals(count.flops().all(), count.ofProducts(32) + count.ofAttention(), 1);
                FlopCount.Row first = count.rows().stream()
                        .filter(row -> row.layer().equals("layers.0"))
                        .findFirst()
                        .orElseThrow();
                assertEquals(layer + attention, first.flops().forward(), first.toString());
                assertEquals(2 * (layer + attention), first.flops().backward(), first.toString());
                assertTrue(count.table().contains("all, losses included"), count.table());
            }
        }
    }

    @Test
    void ofADecoder() {
        var sizes = new DecoderSizes(40, LAYERS, HIDDEN, 4, 2, 8, INNER, 32);
        var config = new DecoderConfig(sizes, DecoderForm.of(DecoderArchitecture.LLAMA, 8));
        long keys = 2 * 8;
        double layer = product(HIDDEN + 2 * keys, HIDDEN) + product(HIDDEN, HIDDEN) + 3 * product(INNER, HIDDEN);
        double attention = 4 * HIDDEN * pairs(-1, 0);
        double forward = LAYERS * (layer + attention) + product(sizes.paddedVocabulary(), HIDDEN);
        try (Decoder model = new Decoder(device, config, DType.FLOAT32, 1)) {
            FlopCount count = counted(ids -> {
                model.loss(ids, ids, pass);
                model.backward(1, pass);
            });
            double scores = LAYERS * 2 * HIDDEN * pairs(-1, 0);
            assertEquals(new Flops(forward, 2 * forward, scores), count.flops());
        }
    }

    @Test
    void ofAClassifier() {
        var encoder = new Esm2Config(LAYERS, HIDDEN, 2, 32);
        var config = new Esm2ClassifierConfig(encoder, Esm2ClassifierConfig.Task.TOKENS, 5);
        double layer = product(3 * HIDDEN, HIDDEN) + product(HIDDEN, HIDDEN) + 2 * product(INNER, HIDDEN);
        double attention = 4 * HIDDEN * pairs(-1, -1);
        double forward = LAYERS * (layer + attention) + product(16, HIDDEN); // columns of products are multiples of 16
        try (Esm2Classifier model = new Esm2Classifier(device, config, DType.FLOAT32, 1)) {
            FlopCount count = counted(ids -> {
                model.loss(ids, ids, pass);
                model.backward(1, null, pass);
            });
            double scores = LAYERS * 2 * HIDDEN * pairs(-1, -1);
            assertEquals(new Flops(forward, 2 * forward, scores), count.flops());
        }
    }

    @Test
    void givesRatesWithTimes() {
        var config = new Esm2Config(LAYERS, HIDDEN, 2, 32);
        try (Esm2 model = new Esm2(device, config, DType.FLOAT32, 1);
                PassProfile profile = new PassProfile(device)) {
            pass.observe(profile);
            FlopCount count = counted(ids -> {
                model.loss(ids, ids, pass);
                model.backward(1, pass);
            });
            PassProfile.Row row = profile.rows().stream()
                    .filter(one -> one.layer().equals("layers.1"))
                    .findFirst()
                    .orElseThrow();
            FlopCount.Row counted = count.rows().stream()
                    .filter(one -> one.layer().equals("layers.1"))
                    .findFirst()
                    .orElseThrow();
            String rate = String.format(
                    Locale.ROOT,
                    "%.3f %10.2f",
                    row.forwardMillis(),
                    counted.flops().forward() / row.forwardMillis() / 1e9);
            assertTrue(count.rates(profile, 1).contains(rate), () -> rate + "\n" + count.rates(profile, 1));
            pass.forget(profile);
        }
    }

    @Test
    void ofForwardAlone() {
        var config = new Esm2Config(LAYERS, HIDDEN, 2, 32);
        try (Esm2 model = new Esm2(device, config, DType.FLOAT32, 1)) {
            FlopCount count = counted(ids -> model.logits(ids, pass));
            assertEquals(
                    config.flops(TOKENS, (long) pairs(-1, -1)) / 3,
                    count.flops().all(),
                    1);
            assertEquals(0, count.flops().backward());
        }
    }

    @Test
    void ofWindows() {
        Lengths lengths = Lengths.of(Arrays.stream(LENGTHS).asLongStream().toArray());
        for (int left = -1; left < 22; left++) {
            for (int right = -1; right < 22; right++) {
                assertEquals(pairs(left, right), lengths.pairs(left, right), left + " " + right);
            }
        }
        assertEquals("Lengths(sequences=3, tokens=32)", lengths.toString());
        assertEquals(7 * 7 + 2 * 2, Lengths.ofTokens(9, 7).pairs(-1, -1));
        assertEquals(
                "lengths: expected no negative length, got -1",
                assertThrows(IllegalArgumentException.class, () -> Lengths.of(3, -1))
                        .getMessage());
        assertEquals(
                "tokens, longest: expected at least 0 and 1, got 3 and 0",
                assertThrows(IllegalArgumentException.class, () -> Lengths.ofTokens(3, 0))
                        .getMessage());
    }

    @Test
    void refusesASecondCount() {
        try (FlopCount first = FlopCount.of(Lengths.of(1), pass)) {
            assertEquals(
                    "device: expected one on which nothing counts operations yet; close the other FlopCount first",
                    assertThrows(IllegalStateException.class, () -> FlopCount.of(Lengths.of(1), pass))
                            .getMessage());
            assertEquals("FlopCount(model=0.000, recomputation=0.000)", first.toString());
        }
        FlopCount.of(Lengths.of(1), pass).close();
    }
}
