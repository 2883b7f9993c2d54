package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;

/**
 * The training program as it was before parameters were grouped: those that decay lie before all others, and first weights are
 * drawn one after the other. Only the layout and the draws differ from {@link Train}.
 */
final class UngroupedTraining {
    private static final long GOLDEN = 0x9E3779B97F4A7C15L;

    private UngroupedTraining() {}

    public static void main(String[] arguments) {
        var out = new StandardOutput(new FileOutputStream(FileDescriptor.out), System.out.charset());
        System.exit(Train.run(() -> new UngroupedPlatform(Device.open()), out, System.err, arguments));
    }

    /** The device of this process, with models laid out and drawn as they were. */
    private record UngroupedPlatform(Device opened) implements Platform {
        @Override
        public String provider() {
            return opened.provider().label();
        }

        @Override
        public boolean isGpu() {
            return false;
        }

        @Override
        public int devices() {
            return 1;
        }

        @Override
        public int multiprocessors() {
            return opened.multiprocessorCount();
        }

        @Override
        public String device() {
            return opened.name();
        }

        @Override
        public Map<String, String> libraries() {
            return Map.of();
        }

        @Override
        public Training open(TrainingPlan plan) {
            Esm2Config config = (Esm2Config) plan.model();
            var parameters = ModelPlan.ungrouped();
            var model = new Esm2(opened, config, DType.FLOAT32, plan.seed(), parameters);
            draw(parameters.parameters(), plan.seed());
            model.parameters().changed();
            return new ModelTraining(opened, plan.setup(), model, parameters, RankShare.ofOne());
        }

        @Override
        public void close() {
            opened.close();
        }

        /** A generator for each parameter, which gives its elements in a row. */
        private void draw(List<Parameter> parameters, long seed) {
            for (int i = 0; i < parameters.size(); i++) {
                Parameter parameter = parameters.get(i);
                if (parameter.initializer() instanceof Initializer.Normal(float standardDeviation)) {
                    var random = new SplittableRandom(seed * GOLDEN + (i + 1));
                    float[] weights =
                            new float[Math.toIntExact(parameter.weight().count())];
                    for (int e = 0; e < weights.length; e++) {
                        weights[e] = (float) (standardDeviation * random.nextGaussian());
                    }
                    parameter.weight().set(opened.stream(), weights);
                }
            }
        }
    }
}
