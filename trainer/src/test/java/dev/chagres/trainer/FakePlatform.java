package dev.chagres.trainer;

import java.util.Map;

/** Stands for a machine in tests of the command. */
final class FakePlatform implements Platform {
    final FakeModel model = new FakeModel();
    boolean gpu;
    boolean closed;

    @Override
    public String provider() {
        return gpu ? "cuda" : "reference";
    }

    @Override
    public boolean isGpu() {
        return gpu;
    }

    @Override
    public int devices() {
        return 8;
    }

    @Override
    public int multiprocessors() {
        return 132;
    }

    @Override
    public String device() {
        return gpu ? "NVIDIA H200" : "CPU";
    }

    @Override
    public Map<String, String> libraries() {
        return Map.of("te", "2.20.2", "cudnn", "9.19.0");
    }

    @Override
    public Training open(TrainingPlan plan) {
        return model;
    }

    @Override
    public void close() {
        closed = true;
    }
}
