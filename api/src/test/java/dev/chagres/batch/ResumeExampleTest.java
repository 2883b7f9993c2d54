package dev.chagres.batch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.io.Safetensors;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.Linear;
import dev.chagres.optim.AdamW;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.pass.Pass;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The example of docs/step-graphs.md: sequences of one's own, and a run that goes on at the next one with the same bits. */
@Tag("L0")
@Tag("L1")
class ResumeExampleTest {
    private static final int VOCABULARY = 64;

    @TempDir
    private Path folder;

    // @start region="sequences"
    /** Sequences of tokens, once; each token is labelled with the next one. */
    static final class ListedSequences implements TokenSequences {
        private final Iterator<int[]> left;
        private int[] tokens = {};

        ListedSequences(List<int[]> sequences) {
            left = sequences.iterator();
        }

        @Override
        public boolean advance() {
            boolean more = left.hasNext();
            tokens = more ? left.next() : tokens;
            return more;
        }

        @Override
        public int length() {
            return tokens.length;
        }

        @Override
        public int write(int[] ids, int[] labels, int start, int count) {
            System.arraycopy(tokens, 0, ids, start, count);
            System.arraycopy(tokens, 1, labels, start, count - 1);
            labels[start + count - 1] = Batch.IGNORED;
            return count - 1; // so many have a label
        }

        @Override
        public int padding() {
            return 0;
        }

        @Override
        public void close() {}
    }
    // @end

    private static List<int[]> data() {
        List<int[]> all = new ArrayList<>();
        for (int i = 0; i < 40; i++) {
            int first = i;
            int[] tokens = new int[5 + 3 * i % 7];
            Arrays.setAll(tokens, place -> 1 + (7 * first + place) % (VOCABULARY - 1));
            all.add(tokens);
        }
        return all;
    }

    /** The program of one run. */
    private static final class Run {
        private final ModelPlan plan = new ModelPlan();
        private final Embedding embedding =
                new Embedding(VOCABULARY, 16, Initializer.normal(0.5f), plan.group("embedding"));
        private final Linear head = new Linear(16, VOCABULARY, Initializer.normal(0.5f), plan.group("head"));
        private final CrossEntropy crossEntropy = new CrossEntropy(VOCABULARY);
        private final List<String> seen = new ArrayList<>();
        private long taken;

        /** Trains up to {@code steps} in all, from {@code file} on if there is one, saves, and returns the weights. */
        float[] train(Path file, int steps) throws InterruptedException {
            BatchShape shape = new BatchShape(BatchLayout.PACKED, 64, 32, 2);
            TokenSequences sequences = new ListedSequences(data());
            try (Device device = Device.open();
                    Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 42);
                    AdamW optimizer = new AdamW(parameters, AdamW.Config.standard());
                    Pass pass = Pass.training(device);
                    UploadRing uploads = new UploadRing(device, shape, 2)) {
                // @start region="place"
                State place = new State.Builder() // taken, a field, counts the sequences of all steps so far
                        .number("data.sequences", () -> taken, value -> taken = value, Long.MAX_VALUE)
                        .build();
                State state = State.of(parameters.state(), optimizer.state(), place);
                if (Files.exists(file)) {
                    Safetensors.load(file, state, device.stream());
                }
                for (long i = 0; i < taken; i++) {
                    sequences.advance(); // past those of the run before
                }
                try (BatchSource source = new BatchSource(new SequencePacker(shape, sequences), 2)) {
                    Batch batch = source.take();
                    while (batch != null && parameters.step() < steps) {
                        for (int i = 0; i < batch.microBatches(); i++) {
                            taken += batch.microBatch(i).realSequences(); // sequences() counts that of padding, too
                        }
                        step(batch, uploads, pass, optimizer);
                        source.recycle(batch);
                        batch = source.take();
                    }
                }
                Safetensors.save(file, state, device.stream(), Map.of());
                // @end
                return parameters.weights().toFloats(device.stream());
            }
        }

        private void step(Batch batch, UploadRing uploads, Pass pass, AdamW optimizer) {
            uploads.upload(batch);
            ModelInput input;
            do {
                pass.begin();
                input = uploads.next(pass.scope());
                pass.sequences(input.sequences());
                seen.add(Arrays.toString(input.ids().toInts(pass.stream())));
                crossEntropy.forward(head.forward(embedding.forward(input.ids(), pass), pass), input.labels(), pass);
                Tensor gradient = crossEntropy.backward((float) input.share(), pass);
                embedding.backward(head.backward(gradient, pass), pass);
            } while (!input.isLast());
            optimizer.step(1e-2f);
        }
    }

    @Test
    void goesOnAtTheNextSequence() throws InterruptedException {
        Run whole = new Run();
        float[] weights = whole.train(folder.resolve("whole.safetensors"), Integer.MAX_VALUE);
        assertEquals(data().size(), whole.taken);

        Path file = folder.resolve("run.safetensors");
        Run first = new Run();
        first.train(file, 2);
        Run second = new Run();
        float[] resumed = second.train(file, Integer.MAX_VALUE);

        assertEquals(data().size(), second.taken);
        List<String> seen = new ArrayList<>(first.seen);
        seen.addAll(second.seen);
        assertEquals(whole.seen, seen);
        assertArrayEquals(weights, resumed);
    }
}
