"""Build the packages (``make packages``) from two staged trees and common metadata."""
