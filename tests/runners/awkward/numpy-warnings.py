import numpy as np
print(np.geterr(), np.array([0.0]) / 0, np.random.get_state()[0], np.show_config is not None)
print(np.int64(3).__reduce__()[0], np.linalg.inv(np.eye(2)), np.fft.fft([1, 0]), np.ma.array([1]), np.polynomial.Polynomial([1]))
