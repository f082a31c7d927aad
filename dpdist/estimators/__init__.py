"""What Python users hold: estimators in scikit-learn's manner."""
