package dev.chagres.trainer;

import dev.chagres.Device;
import dev.chagres.bindings.Doctor;
import dev.chagres.bindings.Provider;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.BooleanSupplier;

/**
 * The first device of this process's provider.
 *
 * <p>Threading: confined to the thread that opened it.
 */
final class DevicePlatform implements Platform {
    private static final String NO_VERSION = "-";

    private final Device device;

    private DevicePlatform(Device device) {
        this.device = device;
    }

    /** Returns what opens a device of this process's provider. */
    static Platform.Opener opener() {
        return new Platform.Opener() {
            @Override
            public Platform open() {
                return DevicePlatform.open(0);
            }

            @Override
            public Platform open(int device) {
                return DevicePlatform.open(device);
            }
        };
    }

    /**
     * Opens the device.
     *
     * @throws TrainingException when the provider's property has another value than it takes, or there is no device
     * @throws dev.chagres.bindings.NativeException when the provider's libraries cannot be opened
     */
    static DevicePlatform open() {
        return open(0);
    }

    private static DevicePlatform open(int index) {
        try {
            return new DevicePlatform(Device.open(Math.min(index, Device.count() - 1)));
        } catch (IllegalArgumentException e) {
            throw new TrainingException(String.valueOf(e.getMessage()), e);
        }
    }

    @Override
    public String provider() {
        return device.provider().label();
    }

    @Override
    public boolean isGpu() {
        return device.provider() == Provider.CUDA;
    }

    @Override
    public int devices() {
        return Device.count();
    }

    @Override
    public int multiprocessors() {
        return device.multiprocessorCount();
    }

    @Override
    public String device() {
        return device.name();
    }

    /** Those of the vendor, if they compute; ours are of one release with this program and tell none. */
    @Override
    public Map<String, String> libraries() {
        if (!isGpu()) {
            return Map.of(); // without a search for NVIDIA's libraries, which asks Python and opens them
        }
        var versions = new TreeMap<String, String>();
        for (Doctor.Row row : Doctor.report().rows()) {
            if (row.isNeeded()
                    && row.state() != Doctor.State.FAILED
                    && !row.version().equals(NO_VERSION)) {
                versions.put(row.library(), row.version());
            }
        }
        return versions;
    }

    @Override
    public Training open(TrainingPlan plan) {
        return open(plan, () -> false);
    }

    @Override
    public Training open(TrainingPlan plan, BooleanSupplier stopped) {
        return plan.ranks() == 1
                ? ModelTraining.of(device, plan.setup())
                : new RankedTraining(plan.setup(), plan.purpose(), Wording.OPTIONS, stopped);
    }

    @Override
    public void close() {
        device.close();
    }
}
